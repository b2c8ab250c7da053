//! The pipelines in gpumem-ci(7), extracted from the manual page and run on the mock driver.

use std::fs;
use std::process::Command;

use crate::generate;
use crate::machine::{Machine, Running, one_gpu};
use crate::support::{self, Output};

/// Returns the example in a section of the page.
fn example(section: &str) -> String {
    let pages = generate::man_pages();
    let page = &pages.iter().find(|(file, _)| file == "gpumem-ci.7").unwrap().1;
    let section = page.split(&format!(".SH {section}\n")).nth(1).unwrap();
    let text = section.split(".EX\n").nth(1).unwrap().split(".EE").next().unwrap();
    text.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")
}

/// Returns a script from the example: the lines after `introduced_by`, without indentation and `bullet`.
fn script(section: &str, introduced_by: &str, bullet: &str) -> String {
    let text = example(section);
    let lines = text.lines().skip_while(|line| line.trim() != introduced_by).skip(1);
    let prefix = format!("    {bullet}");
    let lines = lines.map_while(|line| Some(line.strip_prefix(&prefix)?.trim_start()));
    let script = lines.collect::<Vec<&str>>().join("\n");
    assert!(script.lines().count() >= 5, "{text}");
    script
}

/// A CI runner with a GPU. gpumem and the tests are on PATH.
struct Runner {
    machine: Machine,
    /// The process that the tests leave on the GPU if `leaves` is set.
    left: Running,
}

impl Runner {
    /// Creates a runner. If `leaves` is set, the tests leave a process on the GPU.
    fn new(leaves: bool) -> Self {
        let machine = Machine::new(&one_gpu(&[]));
        let left = Running::sleep();
        one_gpu(&[left.pid()]).write(&machine.path("left")).unwrap();
        let runner = Self { machine, left };
        let library = runner.machine.library().display();
        let gpumem = support::gpumem();
        runner.write_program(
            "gpumem",
            &format!("c=$1; shift; exec {gpumem} \"$c\" --nvml-library {library} \"$@\""),
        );
        // The tests run until gpumem has sampled them. After each call, the mock driver updates the file `counts`.
        let sampled = "n=0; until [ $n -ge 8 ]; do now=$(cksum < counts); [ \"$now\" = \"$last\" ] || n=$((n+1)); \
                       last=$now; sleep 0.02; done";
        let leave = if leaves { "mv left scene.json" } else { "true" };
        runner.write_program(
            "pytest",
            &format!("echo \"$CUDA_VISIBLE_DEVICES\" > ran; {sampled}; {leave}"),
        );
        runner
    }

    fn write_program(&self, name: &str, text: &str) {
        support::write_program(self.machine.path(name), &format!("#!/bin/sh\n{text}\n"));
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let folder = self.machine.path("");
        let mut command = Command::new(program);
        support::clean_environment(&mut command);
        self.machine.environment(&mut command);
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        command.args(arguments).env("PATH", path).current_dir(&folder);
        command.env("GITHUB_ACTIONS", "true").env("GITHUB_STEP_SUMMARY", folder.join("summary.md"));
        support::finish(&mut command)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.machine.path(name)).unwrap_or_default()
    }
}

/// Runs a pipeline with tests that leave no process on the GPU, and with tests that leave one. `report` returns the
/// text that must name the process.
fn assert_pipeline_works(
    program: &str,
    arguments: &[&str],
    report: fn(&Runner, &Output) -> String,
) {
    for leaves in [false, true] {
        let runner = Runner::new(leaves);
        let output = runner.run(program, arguments);
        assert_eq!(output.code == 0, !leaves, "{arguments:?}: {output:?}");
        assert!(runner.read("ran").starts_with("GPU-"), "{output:?}");
        let pid = runner.left.pid().to_string();
        assert_eq!(report(&runner, &output).contains(&pid), leaves, "{pid}: {output:?}");
    }
}

#[test]
fn the_github_pipeline_works() {
    let script = script("GITHUB ACTIONS", "- run: |", "      ");
    assert_pipeline_works("bash", &["-e", "-c", &script], |_, output| {
        let lines = output.stdout.lines().filter(|line| line.starts_with("::error "));
        lines.collect()
    });
}

#[test]
fn the_gitlab_pipeline_works() {
    let script = script("GITLAB", "script:", "- ");
    assert_pipeline_works("bash", &["-eo", "pipefail", "-c", &script], |runner, _| {
        assert!(runner.read("run.xml").contains("<testsuite "));
        runner.read("left.xml")
    });
}

#[test]
fn the_makefile_works() {
    let make = or_skip!(support::find("make", "make"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("Makefile");
    fs::write(&file, example("MAKE")).unwrap();
    let arguments = ["-f", file.to_str().unwrap(), "gpu-test"];
    assert_pipeline_works(make.to_str().unwrap(), &arguments, |_, output| output.stdout.clone());
}
