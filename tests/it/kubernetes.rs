//! `packaging/kubernetes`: validates the manifest against the schemas of several Kubernetes releases, and runs the
//! image with the manifest's privileges next to a container in a pod's cgroup.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::machine::{Machine, one_gpu};
use crate::owners::containers::{AtEnd, lock_podman, make_root, sh};
use crate::support::{self, wait_until};

fn packaging(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("packaging/kubernetes").join(file)
}

#[test]
fn the_manifest_is_valid_in_several_releases() {
    let python = or_skip!(support::python_with(&["kubernetes_validate"]));
    // The validator's oldest and newest releases.
    const RELEASES: &[&str] = &["1.25", "1.37"];
    let validate = |file: &Path, releases: &[&str]| {
        let mut command = Command::new(&python);
        command.args(["-m", "kubernetes_validate", "--strict"]);
        command.args(releases.iter().flat_map(|release| ["-k", release])).arg(file);
        let output = command.output().unwrap();
        let messages =
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.success(), messages)
    };
    let (is_good, messages) = validate(&packaging("gpumem.yaml"), RELEASES);
    assert!(is_good, "{messages}");
    for release in RELEASES {
        for kind in ["namespace", "daemonset", "networkpolicy"] {
            let line = format!("passed for resource {kind}/gpumem against version {release}");
            assert!(messages.contains(&line), "{line}: {messages}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let mut text = fs::read_to_string(packaging("gpumem.yaml")).unwrap();
    let misspelt = [("readOnlyRootFilesystem", "readonlyRootFilesystem"), ("- port", "- ports")];
    for (good, bad) in misspelt {
        assert!(text.contains(&format!("{good}:")));
        text = text.replace(&format!("{good}:"), &format!("{bad}:"));
    }
    let file = folder.path().join("bad.yaml");
    fs::write(&file, text).unwrap();
    let (is_good, messages) = validate(&file, &RELEASES[1..]);
    for (_, bad) in misspelt {
        let name = bad.trim_start_matches("- ");
        assert!(!is_good && messages.contains(&format!("'{name}' was unexpected")), "{messages}");
    }
}

const LISTED: &str = "import json, sys, yaml
print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";

/// Options for a machine without systemd. Some sandboxes refuse resource limits above their own.
const PODMAN: &str = "podman --cgroup-manager cgroupfs --runtime runc";
const RUN: &str = "run --network none --ulimit nofile=1024:1024 --ulimit nproc=1024:1024";

/// Runs a shell command, which must succeed. Returns standard output.
fn run_shell(line: &str) -> String {
    let output = sh(line);
    assert!(output.status.success(), "{line}\n{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Returns the names of a process's fields.
fn field_names(snapshot: &Value, pid: u32) -> BTreeSet<String> {
    let processes = snapshot["processes"].as_array().unwrap();
    let process = processes.iter().find(|process| process["pid"] == pid).unwrap();
    // gpumem reports `cpu_percent` from the second sample on.
    let fields = process.as_object().unwrap().keys().filter(|name| *name != "cpu_percent");
    fields.cloned().collect()
}

#[test]
fn the_daemonset_names_pods_and_needs_each_capability() {
    or_skip!(support::root("containers"));
    or_skip!(support::find("podman", "podman"));
    let _podman = lock_podman();
    or_skip!(support::find("runc", "runc"));
    let python = or_skip!(support::python_with(&["yaml"]));
    let manifest = packaging("gpumem.yaml");
    let listed = Command::new(python).args(["-c", LISTED]).arg(manifest).output().unwrap();
    let manifest: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
    let daemonset = manifest.iter().find(|document| document["kind"] == "DaemonSet").unwrap();
    let pod = &daemonset["spec"]["template"]["spec"];
    let container = &pod["containers"][0];

    // Build a base image with the C library and a shell, and gpumem's image on top.
    let folder = tempfile::tempdir().unwrap();
    let base = or_skip!(make_root(folder.path()));
    let libraries = run_shell(&format!("ldd {}", support::gpumem()));
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        let copy = base.join(&library[1..]);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(library, copy).unwrap();
    }
    let tried = sh(&format!("{PODMAN} {RUN} --rm --rootfs {} sh -c :", base.display()));
    if !tried.status.success() {
        return support::skip("a container of podman", &String::from_utf8_lossy(&tried.stderr));
    }
    let test_pid = std::process::id();
    let name = |suffix: &str| format!("gpumem-{test_pid}-{suffix}");
    let context = folder.path().join("image");
    fs::create_dir(&context).unwrap();
    fs::copy(support::gpumem(), context.join("gpumem")).unwrap();
    let (base_image, image) = (name("base"), name("image"));
    let _images = AtEnd(format!("podman rmi -f {image} {base_image}"));
    run_shell(&format!("tar -C {} -c . | podman import - localhost/{base_image}", base.display()));
    run_shell(&format!(
        "{PODMAN} build --isolation chroot --build-arg BASE=localhost/{base_image} -f {} -t {image} {}",
        packaging("Containerfile").display(),
        context.display()
    ));
    let demo = run_shell(&format!("{PODMAN} {RUN} --rm --read-only {image} metrics --demo"));
    assert!(demo.contains("\ngpumem_finding_active{"), "{demo}");

    // Start another user's container in a pod's cgroup.
    let uid = |pod: u32| format!("8f7e6d5c-4b3a-4210-8fed-{test_pid:08x}{pod:04x}");
    let _cgroups = AtEnd(format!(
        "find /sys/fs/cgroup -depth -type d -path '*8f7e6d5c-4b3a-4210-8fed-{test_pid:08x}*' -exec rmdir {{}} +"
    ));
    let (holder, monitor) = (name("holder"), name("monitor"));
    let _holder = AtEnd(format!("podman rm -f -t 0 {holder}"));
    let id = run_shell(&format!(
        "{PODMAN} {RUN} -d --name {holder} --user 4711 -e GPUMEM_KEEP=1 --cgroup-parent \
         /kubepods/burstable/pod{} --rootfs {} sleep 600",
        uid(1),
        base.display()
    ));
    let pid = run_shell(&format!("podman inspect -f '{{{{.State.Pid}}}}' {holder}"));
    let pid: u32 = pid.parse().unwrap();
    let machine = Machine::new(&one_gpu(&[pid]));
    // Create the directories of the node that the manifest mounts.
    let node = folder.path().join("node");
    fs::create_dir_all(node.join("var/lib/gpumem")).unwrap();
    fs::create_dir_all(node.join(format!("var/log/pods/team-a_train-0_{}/main", uid(1)))).unwrap();
    let links = node.join("var/log/containers");
    fs::create_dir(&links).unwrap();
    let link = links.join(format!("train-0_team-a_main-{id}.log"));
    std::os::unix::fs::symlink("/nowhere", link).unwrap();

    let security = &container["securityContext"];
    assert_eq!(security["capabilities"]["drop"][0], "ALL");
    let rights = security["capabilities"]["add"].as_array().unwrap();
    let mut options = format!(
        "{RUN} --user {}:{} --cap-drop ALL --cgroupns private --cgroup-parent /kubepods/burstable/pod{} \
         -v {}:/scene.json:ro -v {}:/nvml.so:ro -e GPUMEM_MOCK_SCENE=/scene.json",
        security["runAsUser"],
        security["runAsGroup"],
        uid(2),
        machine.path("scene.json").display(),
        machine.library().display()
    );
    let mut add = |is_asked: bool, option: &str| {
        if is_asked {
            options += option;
        }
    };
    add(pod["hostPID"] == true, " --pid host");
    add(security["allowPrivilegeEscalation"] == false, " --security-opt no-new-privileges");
    add(security["readOnlyRootFilesystem"] == true, " --read-only --read-only-tmpfs=false");
    for mount in container["volumeMounts"].as_array().unwrap() {
        let volumes = pod["volumes"].as_array().unwrap();
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
        let on_node = node.join(&volume["hostPath"]["path"].as_str().unwrap()[1..]);
        let mode = if mount["readOnly"] == true { "ro" } else { "rw" };
        let inside = mount["mountPath"].as_str().unwrap();
        options += &format!(" -v {}:{inside}:{mode}", on_node.display());
    }
    let options_without = |removed: Option<&Value>| {
        let rights = rights.iter().filter(|right| Some(*right) != removed);
        rights.fold(options.clone(), |all, right| {
            format!("{all} --cap-add {}", right.as_str().unwrap())
        })
    };

    let _monitor = AtEnd(format!("podman rm -f -t 0 {monitor}"));
    let arguments = container["args"].as_array().unwrap();
    let arguments: Vec<&str> =
        arguments.iter().map(|argument| argument.as_str().unwrap()).collect();
    run_shell(&format!(
        "{PODMAN} {} -d --name {monitor} {image} {} --nvml-library /nvml.so",
        options_without(None),
        arguments.join(" ")
    ));
    let port = &container["ports"][0]["containerPort"];
    let get = |path: &str| {
        let line =
            format!("podman exec {monitor} /bin/busybox wget -qO- http://127.0.0.1:{port}{path}");
        let output = sh(&line);
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    };
    let path = container["readinessProbe"]["httpGet"]["path"].as_str().unwrap();
    wait_until("the monitor is ready", || get(path).is_some());
    let page = get("/metrics").unwrap();
    let held = page.lines().find(|line| line.starts_with("gpumem_process_memory_bytes{")).unwrap();
    for label in ["user=\"4711\"", "pod=\"train-0\"", "namespace=\"team-a\"", "container=\"main\""]
    {
        assert!(held.contains(label), "{held}");
    }
    let stored = fs::read_dir(node.join("var/lib/gpumem/store")).unwrap().count();
    assert!(stored > 0, "the store is empty, though its folder is writable");

    let fields_without = |removed: Option<&Value>| {
        let options = options_without(removed);
        let json = run_shell(&format!(
            "{PODMAN} {options} --rm {image} ps --json --nvml-library /nvml.so"
        ));
        field_names(&serde_json::from_str(&json).unwrap(), pid)
    };
    let all = fields_without(None);
    let on_node = field_names(&machine.run(&["ps", "--json"]).exits(0).json(), pid);
    assert!(all.contains("environment") && all.is_superset(&on_node), "{on_node:?}\n{all:?}");
    for right in rights {
        let less = fields_without(Some(right));
        assert!(all.is_superset(&less) && less != all, "without {right}: {less:?}");
    }
}
