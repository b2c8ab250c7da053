//! Tests parsing the cgroup paths of containers, jobs and units, and malicious paths.

use super::*;

const A: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const B: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";
const UID: &str = "8f7e6d5c-4b3a-4210-8fed-cba987654321";
const UID_: &str = "8f7e6d5c_4b3a_4210_8fed_cba987654321";
const STATIC: &str = "0123456789abcdef0123456789abcdef";

/// Container runtime and id, pod uid and QoS class, Slurm job and step, systemd unit.
type Facts = (
    Option<(Option<String>, String)>,
    Option<(String, String)>,
    Option<(String, Option<String>)>,
    Option<String>,
);

fn facts(place: &CgroupPlace) -> Facts {
    let text = |text: &Option<Arc<str>>| text.as_deref().map(str::to_owned);
    (
        place.container.as_ref().map(|c| (text(&c.runtime), text(&c.id).unwrap())),
        place.kubernetes.as_ref().map(|k| (text(&k.pod_uid).unwrap(), text(&k.qos).unwrap())),
        place.slurm.as_ref().map(|s| (text(&s.job_id).unwrap(), text(&s.step_id))),
        text(&place.systemd_unit),
    )
}

fn unified(path: &str) -> CgroupPlace {
    parse_cgroup(format!("0::{path}\n").as_bytes())
}

/// Replaces `{A}`, `{B}`, `{UID}`, `{UID_}` and `{STATIC}` with ids.
fn filled(text: &str) -> String {
    text.replace("{A}", A)
        .replace("{B}", B)
        .replace("{UID}", UID)
        .replace("{UID_}", UID_)
        .replace("{STATIC}", STATIC)
}

#[test]
fn containers_are_known_by_their_components() {
    for (path, runtime, id) in [
        ("/docker/{A}", Some("docker"), A),
        ("/system.slice/docker-{A}.scope", Some("docker"), A),
        ("/docker/{A}/system.slice/nginx.service", Some("docker"), A),
        // The root user of a container chooses the names of cgroups inside the container.
        ("/docker/{A}/docker/{B}", Some("docker"), A),
        ("/docker/{A}/kubepods/besteffort/pod{UID}/{B}", Some("docker"), A),
        ("/docker/{A}/system.slice/slurmstepd.scope/job_77/step_0", Some("docker"), A),
        ("/ecs/0123456789abcdef0123456789abcdef/{A}", None, A),
        ("/machine.slice/libpod-{A}.scope/container", Some("podman"), A),
        ("/libpod_parent/libpod-{A}", Some("podman"), A),
        ("/default/{A}", Some("nerdctl"), A),
        ("/system.slice/nerdctl-{A}.scope", Some("nerdctl"), A),
        ("/lxc/web", Some("lxc"), "web"),
        ("/lxc/101/ns/system.slice/ssh.service", Some("lxc"), "101"),
        ("/lxc.payload/web", Some("lxc"), "web"),
        ("/lxc.payload.web/system.slice/cron.service", Some("lxc"), "web"),
        ("/../docker-{A}.scope", Some("docker"), A),
        ("/{A}", None, A),
    ] {
        let path = filled(path);
        let expected = (Some((runtime.map(str::to_owned), id.to_owned())), None, None, None);
        assert_eq!(facts(&unified(&path)), expected, "{path}");
    }
}

#[test]
fn pods_are_known_by_their_uid() {
    for (path, runtime, id, uid, qos) in [
        ("/kubepods/burstable/pod{UID}/{A}", None, A, UID, "burstable"),
        ("/kubepods/pod{UID}/{A}", None, A, UID, "guaranteed"),
        ("/kubepods/burstable/pod{STATIC}/{A}", None, A, STATIC, "burstable"),
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice/cri-containerd-{A}.scope",
            Some("containerd"),
            A,
            UID,
            "burstable",
        ),
        (
            "/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{A}.scope",
            Some("containerd"),
            A,
            UID,
            "guaranteed",
        ),
        (
            "/system.slice/containerd.service/kubepods-burstable-pod{UID}.slice:cri-containerd:{A}",
            Some("containerd"),
            A,
            UID,
            "burstable",
        ),
        (
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID_}.slice/crio-{A}.scope/container",
            Some("cri-o"),
            A,
            UID,
            "besteffort",
        ),
        ("/kubepods/besteffort/pod{UID}/crio-{A}", Some("cri-o"), A, UID, "besteffort"),
        (
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{UID_}.slice/cri-containerd-{A}.scope",
            Some("containerd"),
            A,
            UID,
            "burstable",
        ),
        ("/kubepods/burstable/pod{UID}/{A}/docker/{B}", None, A, UID, "burstable"),
        (
            "/k8s.slice/k8s-kubepods.slice/k8s-kubepods-pod{UID_}.slice/cri-containerd-{A}.scope",
            Some("containerd"),
            A,
            UID,
            "guaranteed",
        ),
    ] {
        let path = filled(path);
        let expected = (
            Some((runtime.map(str::to_owned), id.to_owned())),
            Some((uid.to_owned(), qos.to_owned())),
            None,
            None,
        );
        assert_eq!(facts(&unified(&path)), expected, "{path}");
    }
    // If gpumem runs in the cgroup namespace of a pod, the path of another pod is relative to gpumem's cgroup.
    for (path, qos) in [
        ("/../../pod{UID}/{A}", None),
        ("/../../../pod{UID}/{A}", None),
        ("/../../../besteffort/pod{UID}/{A}", Some("besteffort")),
        ("/../../kubepods-burstable-pod{UID_}.slice/cri-containerd-{A}.scope", Some("burstable")),
        ("/../../../kubepods-pod{UID_}.slice/cri-containerd-{A}.scope", Some("guaranteed")),
    ] {
        let place = unified(&filled(path));
        assert_eq!(place.container.unwrap().id.as_deref(), Some(A), "{path}");
        let pod = place.kubernetes.unwrap();
        assert_eq!((pod.pod_uid.as_deref(), pod.qos.as_deref()), (Some(UID), qos), "{path}");
    }
    // The pause process of a pod is not in a container. Names that only resemble those of pods are ignored.
    let pause = unified(&filled("/kubepods/burstable/pod{UID}"));
    assert!(pause.container.is_none() && pause.kubernetes.is_some());
    for path in [
        "/machine.slice/machine-libpod_pod_{A}.slice/libpod-{A}.scope",
        "/kubepods/burstable/pod{UID}0",
        "/kubepods/burstable/xpod{UID}",
        "/kubepods/burstable/pod",
        "/system.slice/pod{UID}.slice",
        "/../system.slice/pod{UID}",
    ] {
        assert_eq!(unified(&filled(path)).kubernetes, None, "{path}");
    }
}

#[test]
fn jobs_of_slurm_are_known_in_both_versions() {
    for (path, job, step) in [
        ("/slurm/uid_1000/job_77/step_0/task_3", "77", Some("0")),
        ("/slurm_node7/uid_1000/job_77/step_batch/task_0", "77", Some("batch")),
        ("/slurm/uid_1000/job_77", "77", None),
        ("/system.slice/slurmstepd.scope/job_77/step_0/user/task_0", "77", Some("0")),
        ("/system.slice/slurmstepd.scope/job_77/step_extern/slurm", "77", Some("extern")),
        ("/system.slice/n1_slurmstepd.scope/job_77/step_1+2/user/task_0", "77", Some("1+2")),
        (
            "/system.slice/slurmstepd.scope/s0123456789ABC/step_0/user/task_0",
            "s0123456789ABC",
            Some("0"),
        ),
        ("/slurm/uid_0/sZYXWVTSRQPNMK/step_4", "sZYXWVTSRQPNMK", Some("4")),
    ] {
        let expected = (None, None, Some((job.to_owned(), step.map(str::to_owned))), None);
        assert_eq!(facts(&unified(path)), expected, "{path}");
    }
    for path in [
        "/system.slice/slurmstepd.scope/system",
        "/system.slice/slurmstepd.scope/job_x",
        "/system.slice/slurmstepd.scope/sILOU456789ABC",
        "/job_77/step_0",
        "/slurm/job_77",
        "/slurm/uid_x/job_77",
        "/slurmish/uid_1/job_77",
    ] {
        assert_eq!(unified(path).slurm, None, "{path}");
    }
}

#[test]
fn units_are_those_of_this_systemd() {
    for (path, unit) in [
        ("/system.slice/ollama.service", Some("ollama.service")),
        ("/system.slice/system-getty.slice/getty@tty1.service", Some("getty@tty1.service")),
        ("/system.slice/train.service/workers/3", Some("train.service")),
        ("/user.slice/user-1000.slice/session-3.scope", Some("session-3.scope")),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/jupyter.service",
            Some("jupyter.service"),
        ),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice/vte-spawn-0a1b.scope",
            Some("vte-spawn-0a1b.scope"),
        ),
        ("/user.slice/user-1000.slice/user@1000.service/init.scope", Some("user@1000.service")),
        ("/user.slice/user-1000.slice/user@1000.service", Some("user@1000.service")),
        ("/init.scope", Some("init.scope")),
        ("/system.slice", None),
        // Units below other cgroups are ignored.
        ("/../../system.slice/a.service", None),
        ("/mine/system.slice/a.service", None),
    ] {
        let place = unified(path);
        assert_eq!(place.systemd_unit.as_deref(), unit, "{path}");
        assert_eq!(place.cgroup.as_deref(), Some(path));
    }
    // The kernel appends a suffix to the path of a removed cgroup.
    let removed = unified("/system.slice/train.service (deleted)");
    assert_eq!(removed.systemd_unit.as_deref(), Some("train.service"));
    // The unit is reported if it was created for the container.
    let split = unified(&filled("/system.slice/web.service/libpod-payload-{A}"));
    assert_eq!(split.systemd_unit.as_deref(), Some("web.service"));
    assert_eq!(split.container.unwrap().runtime.as_deref(), Some("podman"));
}

#[test]
fn an_nspawn_machine_is_a_container_and_a_vm_is_not() {
    for (path, name) in [
        (r"/machine.slice/machine-my\x2dbox.scope/payload/system.slice/a.service", Some("my-box")),
        ("/machine.slice/systemd-nspawn@box.service/payload", Some("box")),
        (r"/machine.slice/machine-qemu\x2d1\x2dvm.scope/libvirt/emulator", None),
        (r"/machine.slice/machine-lxc\x2d1\x2dvm.scope", None),
    ] {
        let place = unified(path);
        let container = place.container.as_deref();
        let of_nspawn =
            container.filter(|container| container.runtime.as_deref() == Some("nspawn"));
        assert_eq!(of_nspawn.and_then(|container| container.id.as_deref()), name, "{path}");
        assert_eq!(place.systemd_unit.is_none(), name.is_some(), "{path}");
    }
}

#[test]
fn a_monitor_is_not_in_its_container() {
    for (path, unit) in [
        ("/machine.slice/libpod-conmon-{A}.scope", Some("libpod-conmon-{A}.scope")),
        (
            "/kubepods.slice/kubepods-pod{UID_}.slice/crio-conmon-{A}.scope",
            Some("crio-conmon-{A}.scope"),
        ),
        ("/system.slice/containerd.service", Some("containerd.service")),
        ("/lxc.monitor.web", None),
    ] {
        let place = unified(&filled(path));
        assert_eq!(place.container, None, "{path}");
        if place.kubernetes.is_none() {
            assert_eq!(place.systemd_unit, unit.map(|unit| filled(unit).into()), "{path}");
        }
    }
}

#[test]
fn the_more_informative_hierarchy_is_used() {
    let v1 = filled(
        "12:pids:/docker/{A}\n11:memory:/docker/{A}\n1:name=systemd:/docker/{A}\n0::/system.slice/containerd.service\n",
    );
    let place = parse_cgroup(v1.as_bytes());
    assert_eq!(place.container.unwrap().id.as_deref(), Some(A));
    assert_eq!(place.cgroup, Some(filled("/docker/{A}").into()));
    assert_eq!(place.systemd_unit, None);

    let slurm = b"9:freezer:/slurm/uid_5/job_7/step_0\n8:memory:/slurm/uid_5/job_7/step_0/task_0\n0::/system.slice/slurmd.service\n";
    let place = parse_cgroup(slurm);
    assert_eq!(place.slurm.unwrap().job_id.as_deref(), Some("7"));
    assert_eq!(place.cgroup.as_deref(), Some("/slurm/uid_5/job_7/step_0/task_0"));
    assert_eq!(place.systemd_unit, None);

    let hybrid = b"9:cpu,cpuacct:/x\n4:memory:/user.slice\n1:name=systemd:/user.slice/user-5.slice/session-2.scope\n0::/\n";
    let place = parse_cgroup(hybrid);
    assert_eq!(place.cgroup.as_deref(), Some("/user.slice"));
    assert_eq!(place.systemd_unit.as_deref(), Some("session-2.scope"));

    // The memory controller can share a hierarchy with other controllers.
    let place = parse_cgroup(b"3:cpu,memory:/batch\n");
    assert_eq!(place.cgroup.as_deref(), Some("/batch"));
    assert_eq!(parse_cgroup(b"3:cpu:/batch\n").cgroup, None);
}

#[test]
fn hostile_paths_are_bounded_and_valid() {
    for bytes in [
        &b""[..],
        b"\n",
        b"0::",
        b"0::\n",
        b"::\n",
        b"0\n1:\nx",
        b"\xff\xfe\n",
        b"0::/docker/0123",
        b"0:://///\n",
        // A cgroup namespace hides the whole path.
        b"0::/\n",
        b"0::/../..\n",
    ] {
        assert_eq!(parse_cgroup(bytes), CgroupPlace::default(), "{}", bytes.escape_ascii());
    }
    // A truncated line proves nothing.
    assert_eq!(parse_cgroup(filled("0::/docker/{A}").as_bytes()), CgroupPlace::default());
    // Ids in other formats are ignored.
    for path in ["/docker/{A}0", "/docker-{A}.scope.d", "/x{A}", "/foo-{A}.scope"] {
        assert_eq!(unified(&filled(path)).container, None, "{path}");
    }
    let upper = filled("/docker/{A}").to_uppercase();
    assert_eq!(unified(&upper).container, None);

    let long = format!("/lxc/{}", "\u{1b}[31m".repeat(13 << 10));
    let place = unified(&long);
    assert!(place.cgroup.unwrap().len() <= PATH_BYTES + 3);
    let name = place.container.unwrap().id.clone().unwrap();
    assert!(name.len() <= NAME_BYTES + 3 && name.ends_with('…'), "{name}");

    let mut broken = b"0::/lxc/".to_vec();
    broken.extend([0xff, 0xc3, b'\n']);
    let name = parse_cgroup(&broken).container.unwrap().id.clone().unwrap();
    assert_eq!(&*name, "\u{fffd}\u{fffd}");

    for path in ["/a".repeat(32 << 10), ":".repeat(64 << 10), "/pod-".repeat(13 << 10)] {
        let place = unified(&path);
        assert_eq!((place.container, place.kubernetes), (None, None));
    }
}
