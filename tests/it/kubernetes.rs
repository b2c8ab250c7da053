//! `packaging/kubernetes`: its manifest against the schemas of Kubernetes' releases, and its image with the rights
//! of the manifest, beside a container in the cgroup of a pod.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::machine::{Machine, one_gpu};
use crate::owners::containers::{AtEnd, lock_podman, sh, tree};
use crate::support::{self, wait_until};

fn packaging(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("packaging/kubernetes").join(file)
}

#[test]
fn the_manifest_fits_the_schemas_of_several_releases() {
    let python = or_skip!(support::python_with(&["kubernetes_validate"]));
    // The oldest that has them, the newest, and between.
    const RELEASES: [&str; 4] = ["1.25", "1.29", "1.33", "1.37"];
    let validate = |file: &Path| {
        let mut command = Command::new(&python);
        command.args(["-m", "kubernetes_validate", "--strict"]);
        command.args(RELEASES.iter().flat_map(|it| ["-k", it])).arg(file);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.success(), said)
    };
    let (is_good, said) = validate(&packaging("gpumem.yaml"));
    assert!(is_good, "{said}");
    for release in RELEASES {
        for what in ["namespace", "daemonset", "networkpolicy"] {
            let line = format!("passed for resource {what}/gpumem against version {release}");
            assert!(said.contains(&line), "{line}: {said}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(packaging("gpumem.yaml")).unwrap();
    for (good, bad) in
        [("readOnlyRootFilesystem:", "readonlyRootFilesystem:"), ("- port:", "- ports:")]
    {
        let file = folder.path().join("bad.yaml");
        let misspelt = text.replace(good, bad);
        assert_ne!(misspelt, text);
        fs::write(&file, misspelt).unwrap();
        let (is_good, said) = validate(&file);
        let name = bad.trim_matches(['-', ' ', ':']);
        assert!(!is_good && said.contains(&format!("'{name}' was unexpected")), "{said}");
    }
}

const LISTED: &str = "import json, sys, yaml
print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";

/// A machine without systemd; limits above those of its own are refused in some sandboxes.
const PODMAN: &str = "podman --cgroup-manager cgroupfs --runtime runc";
const RUN: &str = "run --network none --ulimit nofile=1024:1024 --ulimit nproc=1024:1024";

/// Runs a line that has to succeed.
fn line(line: &str) -> String {
    let output = sh(line);
    assert!(output.status.success(), "{line}\n{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// What is known of a process, by the names of its fields.
fn known(snapshot: &Value, pid: u32) -> BTreeSet<String> {
    let processes = snapshot["processes"].as_array().unwrap();
    let process = processes.iter().find(|it| it["pid"] == pid).unwrap();
    // It has none before the second sample.
    let fields = process.as_object().unwrap().keys().filter(|it| *it != "cpu_percent");
    fields.cloned().collect()
}

#[test]
fn the_daemonset_names_pods_by_its_rights_and_each_is_needed() {
    or_skip!(support::root("containers"));
    or_skip!(support::find("podman", "podman"));
    let _podman = lock_podman();
    or_skip!(support::find("runc", "runc"));
    let python = or_skip!(support::python_with(&["yaml"]));
    let manifest = packaging("gpumem.yaml");
    let listed = Command::new(python).args(["-c", LISTED]).arg(manifest).output().unwrap();
    let manifest: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
    let daemonset = manifest.iter().find(|it| it["kind"] == "DaemonSet").unwrap();
    let pod = &daemonset["spec"]["template"]["spec"];
    let container = &pod["containers"][0];

    // A base with the C library and a shell, and the image on it.
    let folder = tempfile::tempdir().unwrap();
    let base = or_skip!(tree(folder.path()));
    let libraries = line(&format!("ldd {}", support::gpumem()));
    for library in libraries.split_whitespace().filter(|it| it.starts_with('/')) {
        let copy = base.join(&library[1..]);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(library, copy).unwrap();
    }
    let tried = sh(&format!("{PODMAN} {RUN} --rm --rootfs {} sh -c :", base.display()));
    if !tried.status.success() {
        return support::skip("a container of podman", &String::from_utf8_lossy(&tried.stderr));
    }
    let own = std::process::id();
    let name = |what: &str| format!("gpumem-{own}-{what}");
    let context = folder.path().join("image");
    fs::create_dir(&context).unwrap();
    fs::copy(support::gpumem(), context.join("gpumem")).unwrap();
    let (base_image, image) = (name("base"), name("image"));
    let _images = AtEnd(format!("podman rmi -f {image} {base_image}"));
    line(&format!("tar -C {} -c . | podman import - localhost/{base_image}", base.display()));
    line(&format!(
        "{PODMAN} build --isolation chroot --build-arg BASE=localhost/{base_image} -f {} -t {image} {}",
        packaging("Containerfile").display(),
        context.display()
    ));
    let demo = line(&format!("{PODMAN} {RUN} --rm --read-only {image} metrics --demo"));
    assert!(demo.contains("\ngpumem_finding_active{"), "{demo}");

    // A container of another user's in the cgroup of a pod.
    let uid = |pod: u32| format!("8f7e6d5c-4b3a-4210-8fed-{own:08x}{pod:04x}");
    let _cgroups = AtEnd(format!(
        "find /sys/fs/cgroup -depth -type d -path '*8f7e6d5c-4b3a-4210-8fed-{own:08x}*' -exec rmdir {{}} +"
    ));
    let (holder, monitor) = (name("holder"), name("monitor"));
    let _holder = AtEnd(format!("podman rm -f -t 0 {holder}"));
    let id = line(&format!(
        "{PODMAN} {RUN} -d --name {holder} --user 4711 -e GPUMEM_KEEP=1 --cgroup-parent \
         /kubepods/burstable/pod{} --rootfs {} sleep 600",
        uid(1),
        base.display()
    ));
    let pid = line(&format!("podman inspect -f '{{{{.State.Pid}}}}' {holder}"));
    let pid: u32 = pid.parse().unwrap();
    let machine = Machine::new(&one_gpu(&[pid]));
    // The node's folders that the manifest mounts.
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
        let volume = volumes.iter().find(|it| it["name"] == mount["name"]).unwrap();
        let on_node = node.join(&volume["hostPath"]["path"].as_str().unwrap()[1..]);
        let how = if mount["readOnly"] == true { "ro" } else { "rw" };
        let inside = mount["mountPath"].as_str().unwrap();
        options += &format!(" -v {}:{inside}:{how}", on_node.display());
    }
    let with = |without: Option<&Value>| {
        let rights = rights.iter().filter(|it| Some(*it) != without);
        rights.fold(options.clone(), |all, it| format!("{all} --cap-add {}", it.as_str().unwrap()))
    };

    let _monitor = AtEnd(format!("podman rm -f -t 0 {monitor}"));
    let arguments = container["args"].as_array().unwrap();
    let arguments: Vec<&str> = arguments.iter().map(|it| it.as_str().unwrap()).collect();
    line(&format!(
        "{PODMAN} {} -d --name {monitor} {image} {} --nvml-library /nvml.so",
        with(None),
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
    wait_until("it is ready", || get(path).is_some());
    let page = get("/metrics").unwrap();
    let held = page.lines().find(|it| it.starts_with("gpumem_process_memory_bytes{")).unwrap();
    for label in ["user=\"4711\"", "pod=\"train-0\"", "namespace=\"team-a\"", "container=\"main\""]
    {
        assert!(held.contains(label), "{held}");
    }
    let stored = fs::read_dir(node.join("var/lib/gpumem/store")).unwrap().count();
    assert!(stored > 0, "it stores, though nothing but that folder may be written");

    let look = |without: Option<&Value>| {
        let options = with(without);
        let json =
            line(&format!("{PODMAN} {options} --rm {image} ps --json --nvml-library /nvml.so"));
        known(&serde_json::from_str(&json).unwrap(), pid)
    };
    let all = look(None);
    let on_node = known(&machine.run(&["ps", "--json"]).exits(0).json(), pid);
    assert!(all.contains("environment") && all.is_superset(&on_node), "{on_node:?}\n{all:?}");
    for right in rights {
        let less = look(Some(right));
        assert!(all.is_superset(&less) && less != all, "without {right}: {less:?}");
    }
}
