//! The pipelines in gpumem-ci(7), extracted from the manual page and run on the mock driver.

use std::fs;
use std::process::Command;
use std::thread;

use mock_nvml::scene::{Gpu, Process, Scene};

use crate::generate;
use crate::machine::{GIB, Machine, Running};
use crate::run::make_claimable;
use crate::support::{self, Output};

/// Returns the example in a section of the page.
fn example(section: &str) -> String {
    let pages = generate::man_pages();
    let page = &pages.iter().find(|(file, _)| file == "gpumem-ci.7").unwrap().1;
    let section = page.split(&format!(".SH {section}\n")).nth(1).unwrap();
    let text = section.split(".EX\n").nth(1).unwrap().split(".EE").next().unwrap();
    text.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")
}

/// Returns the script in an example: the lines below `introduced_by`, without their indentation.
fn script(section: &str, introduced_by: &str) -> String {
    let text = example(section);
    let lines = text.lines().skip_while(|line| line.trim() != introduced_by).skip(1);
    let lines = lines.take_while(|line| line.starts_with("    ")).map(str::trim);
    let script = lines.collect::<Vec<&str>>().join("\n");
    assert!(script.contains("gpumem run --claim --wait-free"), "{text}");
    script
}

/// Final action of a pipeline's tests.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Tests {
    Pass,
    /// They leave a child on the first GPU.
    LeaveChild,
    /// A daemon has started a process on the first GPU.
    LeaveDaemonsProcess,
    /// Another pipeline has started a process on the second GPU.
    RunBesideOthers,
}

/// A CI runner. gpumem and the tests are on PATH. Each pipeline has a directory.
struct Runner {
    machine: Machine,
    daemons_process: Running,
}

impl Runner {
    /// Creates a runner. The tests fail if other tests use their GPU. They run until the tests of `pipelines` pipelines
    /// have started, and until gpumem has sampled them.
    fn new(gpus: usize, pipelines: usize, tests: Tests) -> Self {
        // A process on one of the GPUs, or on none.
        let scene = |process: Option<(usize, u32)>| {
            (0..gpus).fold(Scene::new(), |scene, index| {
                let gpu = Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
                let own = process.filter(|(at, _)| *at == index);
                scene.gpu(
                    own.into_iter()
                        .fold(gpu, |gpu, (_, pid)| gpu.process(Process::compute(pid, 2 * GIB))),
                )
            })
        };
        let machine = Machine::new(&scene(None));
        make_claimable(&machine);
        let runner = Self { machine, daemons_process: Running::sleep() };
        let folder = runner.machine.path("");
        let process = match tests {
            Tests::Pass => None,
            Tests::LeaveChild => Some((0, CHILD)),
            Tests::LeaveDaemonsProcess => Some((0, runner.daemons_process.pid())),
            Tests::RunBesideOthers => Some((1, runner.daemons_process.pid())),
        };
        scene(process).write(&folder.join("later")).unwrap();
        let gpumem = support::gpumem();
        let library = runner.machine.library().display();
        runner.write_program(
            "gpumem",
            &format!("c=$1; shift; exec {gpumem} \"$c\" --nvml-library {library} \"$@\""),
        );
        let end = match tests {
            Tests::LeaveChild => format!(
                "setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $! > left; \
                 sed s/{CHILD}/$!/ later > new; mv new scene.json"
            ),
            Tests::Pass => "true".to_owned(),
            Tests::LeaveDaemonsProcess | Tests::RunBesideOthers => "mv later scene.json".to_owned(),
        };
        // After each call, the mock driver updates the file `counts`.
        let test = format!(
            "echo \"$CUDA_VISIBLE_DEVICES\" > ran; cd {folder}; : > started.$$\n\
             mkdir \"in-use-$CUDA_VISIBLE_DEVICES\" || exit 9; until set -- started.*; [ $# -ge {pipelines} ]; do sleep 0.02; done\n\
             n=0; until [ $n -ge 8 ]; do now=$(cksum < counts); [ \"$now\" = \"$last\" ] || n=$((n+1))\n\
             last=$now; sleep 0.02; done\n{end}\nrmdir \"in-use-$CUDA_VISIBLE_DEVICES\"",
            folder = folder.display()
        );
        runner.write_program("pytest", &test);
        runner
    }

    fn write_program(&self, name: &str, text: &str) {
        support::write_program(self.machine.path(name), &format!("#!/bin/sh\n{text}\n"));
    }

    /// Runs a pipeline in a directory.
    fn run(&self, program: &[&str], folder: &str) -> Output {
        let path =
            format!("{}:{}", self.machine.path("").display(), std::env::var("PATH").unwrap());
        let folder = self.machine.path(folder);
        fs::create_dir(&folder).unwrap();
        let mut command = Command::new(program[0]);
        support::clean_environment(&mut command);
        self.machine.environment(&mut command);
        command.args(&program[1..]).env("PATH", path).current_dir(&folder);
        command.env("GITHUB_ACTIONS", "true");
        support::finish(&mut command)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.machine.path(name)).unwrap_or_default()
    }

    /// Returns the GPU on which a pipeline's tests ran.
    #[track_caller]
    fn gpu(&self, folder: &str) -> String {
        let gpu = self.read(&format!("{folder}/ran"));
        assert!(gpu.starts_with("GPU-"), "{gpu}");
        gpu
    }
}

/// Placeholder in a scene for the pid of the tests' child.
const CHILD: u32 = 4_194_301;

/// Runs a pipeline with tests that leave no process, and with tests that leave one. The report must contain its pid.
fn assert_pipeline_works(program: &[&str], report: fn(&Runner, &Output) -> String) {
    let runner = Runner::new(1, 1, Tests::Pass);
    let output = runner.run(program, "a").exits(0);
    runner.gpu("a");
    assert!(!report(&runner, &output).is_empty(), "{output:?}");
    let runner = Runner::new(1, 1, Tests::LeaveChild);
    let output = runner.run(program, "a");
    let left: u32 = runner.read("left").trim().parse().unwrap();
    crate::procs::kill_group(left);
    assert_ne!(output.code, 0, "{output:?}");
    assert!(report(&runner, &output).contains(&left.to_string()), "{left}: {output:?}");
}

#[test]
fn the_github_pipeline_works() {
    let script = script("GITHUB ACTIONS", "- run: |");
    let program = ["bash", "-e", "-c", &script];
    assert_pipeline_works(&program, |_, output| output.stderr.clone());
    // Two pipelines at once, on two GPUs and on one.
    for gpus in [2, 1] {
        let runner = Runner::new(gpus, gpus, Tests::Pass);
        thread::scope(|scope| {
            let both = ["a", "b"].map(|folder| scope.spawn(|| runner.run(&program, folder)));
            for pipeline in both {
                pipeline.join().unwrap().exits(0);
            }
        });
        assert_eq!(runner.gpu("a") != runner.gpu("b"), gpus == 2);
    }
}

#[test]
fn the_gitlab_pipeline_works() {
    // YAML joins the lines of a plain scalar with spaces.
    let script = script("GITLAB", "script:").replace('\n', " ");
    let script = script.strip_prefix("- ").unwrap();
    assert_pipeline_works(&["bash", "-eo", "pipefail", "-c", script], |runner, _| {
        runner.read("a/run.xml")
    });
}

#[test]
fn the_makefile_works() {
    let make = or_skip!(support::find("make", "make"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("Makefile");
    fs::write(&file, example("MAKE")).unwrap();
    let program = [make.to_str().unwrap(), "-f", file.to_str().unwrap(), "gpu-test"];
    assert_pipeline_works(&program, |_, output| output.stderr.clone());
}

#[test]
fn the_script_finds_processes_of_daemons_on_its_gpu() {
    for tests in [Tests::Pass, Tests::LeaveDaemonsProcess, Tests::RunBesideOthers] {
        let runner = Runner::new(2, 1, tests);
        let script = runner.machine.path("script");
        support::write_program(&script, &example("PROCESSES OF DAEMONS"));
        let claim = ["gpumem", "run", "--claim", "--wait-free", "8GiB", "--", "../script"];
        let output = runner.run(&claim, "a");
        let pid = runner.daemons_process.pid().to_string();
        let is_left = tests == Tests::LeaveDaemonsProcess;
        let outcome = (output.code == 1, output.stdout.contains(&pid));
        assert_eq!(outcome, (is_left, is_left), "{tests:?}: {output:?}");
    }
}
