//! Looks up the names of users, of Docker containers and of pods, and the ids of runc and crun containers. Other
//! containers are displayed by their id, which the stop command of their runtime accepts.
//!
//! The name service may query a directory server, which can take seconds. Each user is therefore looked up on a
//! separate thread, and the answer is kept. If the answer is late, samples continue, and the name is unknown until the
//! answer arrives.
//!
//! Names of containers are in files of Docker and the kubelet, which can be on a slow disk. A separate thread reads them,
//! and a sample with a new container waits at most [`ANSWER_TIME`]. gpumem sends no requests to the sockets of runtimes.
//! A name remains unknown if the files cannot be read or are in a home directory, as for a rootless container. `cgroup`
//! finds the ids.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::{Uid, User};
use rustix::fs::{Mode, OFlags, open};
use serde_json::Value;

use crate::deadline::{ANSWER_TIME, Answers, NoAnswer, NotAsked, Task, Worker};
use crate::host::owner::cgroup::CgroupPlace;
use crate::host::truncate;

const BATCHES: usize = 4;

const ANSWERS: usize = 4096;

const FILE_BYTES: u64 = 4 << 20;

const ENTRIES: usize = 8192;

/// Maximum length of a name in Kubernetes and of a host name.
const NAME_BYTES: usize = 253;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NameQuestion {
    runtime: Option<Arc<str>>,
    id: Option<Arc<str>>,
    pod_uid: Option<Arc<str>>,
    /// Pid and start ticks of the first process in a container, if the cgroup does not name the container.
    first: Option<(u32, u64)>,
}

impl NameQuestion {
    pub fn about(place: &CgroupPlace, first: Option<(u32, u64)>) -> Option<Self> {
        let container = place.container.as_deref();
        let is_unnamed = container.is_none() && place.kubernetes.is_none();
        let question = Self {
            runtime: container.and_then(|container| container.runtime.clone()),
            // LXC containers and systemd-nspawn machines have no id apart from their name.
            id: container
                .filter(|container| !matches!(container.runtime.as_deref(), Some("lxc" | "nspawn")))
                .and_then(|container| container.id.clone()),
            pod_uid: place.kubernetes.as_ref().and_then(|pod| pod.pod_uid.clone()),
            first: first.filter(|_| is_unnamed),
        };
        let is_any = question.id.is_some() || question.pod_uid.is_some();
        (is_any || question.first.is_some()).then_some(question)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ContainerNames {
    pub container: Option<Arc<str>>,
    pub pod: Option<Arc<str>>,
    pub namespace: Option<Arc<str>>,
    pub container_in_pod: Option<Arc<str>>,
    pub runtime: Option<Arc<str>>,
    pub id: Option<Arc<str>>,
}

#[derive(Debug)]
pub struct Names {
    root: PathBuf,
    /// Answers to all questions so far, `None` if the answer is not yet known.
    known: HashMap<NameQuestion, Option<Arc<ContainerNames>>>,
    wanted: Vec<NameQuestion>,
    thread: Option<Worker<Vec<NameQuestion>, Vec<NameAnswer>>>,
    pending: usize,
}

type NameAnswer = (NameQuestion, ContainerNames);

impl Names {
    pub fn new(root: PathBuf) -> Self {
        Self { root, known: HashMap::new(), wanted: Vec::new(), thread: None, pending: 0 }
    }

    /// Returns the names if they are known. If they are not, [`Names::settle`] will ask for them.
    pub fn get(&mut self, question: &NameQuestion) -> Option<Arc<ContainerNames>> {
        if let Some(known) = self.known.get(question) {
            return known.clone();
        }
        if self.known.len() >= ANSWERS {
            self.known.retain(|_, answer| answer.is_none());
        }
        if self.known.len() < ANSWERS {
            self.known.insert(question.clone(), None);
            self.wanted.push(question.clone());
        }
        None
    }

    /// Sends the pending questions and receives answers. Returns whether there were answers. Waits only after it has
    /// sent questions, so that a hanging disk does not delay every sample.
    pub fn settle(&mut self) -> bool {
        let mut patience = Duration::ZERO;
        if !self.wanted.is_empty() {
            let wanted = std::mem::take(&mut self.wanted);
            if self.thread.is_none() {
                self.thread = start(self.root.clone()).ok();
            }
            match self.thread.as_ref().map(|thread| thread.ask(wanted)) {
                Some(Ok(())) => {
                    self.pending += 1;
                    patience = ANSWER_TIME;
                }
                Some(Err(NotAsked::Busy(batch))) => {
                    for question in &batch {
                        self.known.remove(question);
                    }
                }
                Some(Err(NotAsked::Ended)) | None => {}
            }
        }
        let mut has_news = false;
        while self.pending > 0
            && let Some(thread) = &self.thread
            && let Some(answers) = thread.take(patience)
        {
            for (question, answer) in answers {
                self.known.insert(question, Some(Arc::new(answer)));
            }
            self.pending -= 1;
            has_news = true;
            patience = Duration::ZERO;
        }
        has_news
    }
}

fn start(root: PathBuf) -> io::Result<Worker<Vec<NameQuestion>, Vec<NameAnswer>>> {
    let read = move |answers: Answers<_>| {
        move |batch: Vec<NameQuestion>| {
            let names = |question: NameQuestion| {
                let found = read_names(&root, &question);
                (question, found)
            };
            answers.send(batch.into_iter().map(names).collect()).ok()
        }
    };
    Worker::start("names", (BATCHES, BATCHES), read)
}

fn read_names(root: &Path, question: &NameQuestion) -> ContainerNames {
    let first = question.first.and_then(|first| read_by_first(root, first));
    let mut names = first.unwrap_or_default();
    let runtime = question.runtime.as_deref();
    let id = question.id.as_deref().filter(|id| is_id(id));
    if let Some(id) = id.filter(|_| runtime.is_none_or(|runtime| runtime == "docker")) {
        names.container = read_docker(root, id);
    }
    if let Some(uid) = question.pod_uid.as_deref() {
        (names.namespace, names.pod) = read_pod_logs(root, uid).unwrap_or_default();
        let id = question.id.as_deref();
        names.container_in_pod = id.and_then(|id| read_container_logs(root, id));
    }
    names
}

/// Reads `Name`, which starts with a slash, from Docker's description of a container (moby:
/// `daemon/container/container.go`).
fn read_docker(root: &Path, id: &str) -> Option<Arc<str>> {
    let path = root.join("var/lib/docker/containers").join(id);
    let config = read_json(&path.join("config.v2.json"))?;
    let called = config["Name"].as_str()?;
    name(called.strip_prefix('/').unwrap_or(called))
}

/// Finds a container that runc or crun runs directly, by its first process. Each container has a folder named after
/// its id (runc: `libcontainer/state_linux.go`; crun: `src/libcrun/status.c`).
fn read_by_first(root: &Path, (pid, start_ticks): (u32, u64)) -> Option<ContainerNames> {
    let runtimes = [
        ("runc", "state.json", "init_process_pid", "init_process_start"),
        ("crun", "status", "pid", "process-start-time"),
    ];
    runtimes.iter().find_map(|&(runtime, file, its_pid, its_start)| {
        let containers = std::fs::read_dir(root.join("run").join(runtime)).ok()?;
        let mut containers = containers.take(ENTRIES).filter_map(Result::ok);
        containers.find_map(|container| {
            let state = read_json(&container.path().join(file))?;
            let is_it = state[its_pid].as_u64() == Some(pid.into())
                && state[its_start].as_u64() == Some(start_ticks);
            is_it.then_some(())?;
            Some(ContainerNames {
                runtime: Some(runtime.into()),
                id: name(container.file_name().to_str()?),
                ..ContainerNames::default()
            })
        })
    })
}

type NamespaceAndPod = (Option<Arc<str>>, Option<Arc<str>>);

/// Reads the namespace and name of a pod from the name of its log folder, `NAMESPACE_NAME_UID` (kubelet:
/// `pkg/kubelet/kuberuntime`). Returns `None` if no folder or more than one folder has this uid.
fn read_pod_logs(root: &Path, uid: &str) -> Option<NamespaceAndPod> {
    let mut found = None;
    for folder in entries(&root.join("var/log/pods")) {
        let parts: Vec<&str> = folder.split('_').collect();
        let [namespace, pod, its_uid] = parts[..] else { continue };
        if its_uid == uid && found.replace((name(namespace), name(pod))).is_some() {
            return None;
        }
    }
    found
}

/// Reads the name of a container from the name of the kubelet's link, `POD_NAMESPACE_CONTAINER-ID.log`. The kubelet
/// creates no link if its name would be too long.
fn read_container_logs(root: &Path, id: &str) -> Option<Arc<str>> {
    entries(&root.join("var/log/containers")).find_map(|link| {
        let link = link.strip_suffix(".log")?.strip_suffix(id)?.strip_suffix('-')?;
        let parts: Vec<&str> = link.split('_').collect();
        let [_, _, container] = parts[..] else { return None };
        name(container)
    })
}

fn entries(folder: &Path) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().take(ENTRIES);
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok())
}

/// Truncates a name to its maximum length. Returns `None` if the name is empty.
pub(in crate::host) fn name(text: &str) -> Option<Arc<str>> {
    let text = truncate(text, NAME_BYTES);
    (!text.is_empty()).then(|| text.into())
}

/// Returns whether the text is an id. A path that leads out of the runtime's folder is not an id.
fn is_id(id: &str) -> bool {
    id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn read_json(path: &Path) -> Option<Value> {
    serde_json::from_slice(&read_file(path)?).ok()
}

fn read_file(path: &Path) -> Option<Vec<u8>> {
    // Do not wait for a device, or for a pipe that nothing writes to.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(open(path, flags, Mode::empty()).ok()?);
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES {
        return None;
    }
    let mut content = Vec::new();
    file.take(FILE_BYTES).read_to_end(&mut content).ok()?;
    Some(content)
}

const RETRY_NS: u64 = 60_000_000_000;
/// Maximum wait for an answer. After the first timeout, look-ups do not wait for answers any more.
const PATIENCE: Duration = Duration::from_millis(300);

/// Returns whether the name service knows no user with this name. Returns `false` if the name service fails.
pub fn is_unknown_user(name: &str) -> bool {
    matches!(User::from_name(name), Ok(None))
}

#[derive(Debug, Default)]
pub struct Users {
    answers: HashMap<u32, UserAnswer>,
    is_slow: bool,
}

#[derive(Debug)]
enum UserAnswer {
    Asked(Task<Result<Option<String>, ()>>),
    Known { name: Option<Arc<str>>, retry_ns: Option<u64> },
}

impl Users {
    /// Returns the name of a user. Returns `None` if the user has no name, if the answer has not arrived yet, or if
    /// the name service failed.
    pub fn name(&mut self, uid: u32, now_ns: u64) -> Option<Arc<str>> {
        self.name_by(uid, now_ns, |uid| {
            let user = User::from_uid(Uid::from_raw(uid));
            user.map(|user| user.map(|user| user.name)).map_err(drop)
        })
    }

    fn name_by(
        &mut self,
        uid: u32,
        now_ns: u64,
        ask: impl FnOnce(u32) -> Result<Option<String>, ()> + Send + 'static,
    ) -> Option<Arc<str>> {
        let task = match self.answers.remove(&uid) {
            Some(UserAnswer::Known { name, retry_ns })
                if retry_ns.is_none_or(|retry_ns| now_ns < retry_ns) =>
            {
                self.answers.insert(uid, UserAnswer::Known { name: name.clone(), retry_ns });
                return name;
            }
            Some(UserAnswer::Asked(task)) => Some(task),
            Some(UserAnswer::Known { .. }) | None => {
                Task::start("user-name", move || ask(uid)).ok()
            }
        };
        let patience = if self.is_slow { Duration::ZERO } else { PATIENCE };
        let answer = task.as_ref().map_or(Err(NoAnswer::Never), |task| task.wait(patience));
        if let (Err(NoAnswer::Late), Some(task)) = (&answer, task) {
            self.is_slow = true;
            self.answers.insert(uid, UserAnswer::Asked(task));
            return None;
        }
        let retry_ns = now_ns.saturating_add(RETRY_NS);
        let (name, retry_ns) = match answer {
            Ok(Ok(name)) => (name.map(Arc::<str>::from), None),
            Ok(Err(())) | Err(_) => (None, Some(retry_ns)),
        };
        self.answers.insert(uid, UserAnswer::Known { name: name.clone(), retry_ns });
        name
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::host::owner::cgroup::parse_cgroup;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const UID: &str = "8f7e6d5c-4b3a-4210-8fed-cba987654321";

    /// Returns the names found for the container with this cgroup path on a machine with these files.
    fn names(path: &str, files: &[(&str, &str)]) -> ContainerNames {
        let root = tempfile::tempdir().unwrap();
        let fill = |text: &str| text.replace("{ID}", ID).replace("{UID}", UID);
        for (file, content) in files {
            let file = root.path().join(fill(file));
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, fill(content)).unwrap();
        }
        let place = parse_cgroup(format!("0::{}\n", fill(path)).as_bytes());
        let mut known = Names::new(root.path().to_owned());
        let question = NameQuestion::about(&place, None).unwrap();
        assert_eq!(known.get(&question), None);
        let answer = loop {
            known.settle();
            if let Some(answer) = known.get(&question) {
                break answer;
            }
        };
        assert!(!known.settle(), "nothing is asked twice");
        Arc::unwrap_or_clone(answer)
    }

    fn some(name: &str) -> Option<Arc<str>> {
        Some(name.into())
    }

    #[test]
    fn dockers_files_name_its_containers() {
        let file = "var/lib/docker/containers/{ID}/config.v2.json";
        let expected = ContainerNames { container: some("trainer"), ..ContainerNames::default() };
        let config = r#"{"ID":"{ID}","Name":"/trainer","Config":{"Labels":{}}}"#;
        for path in ["/docker/{ID}", "/system.slice/docker-{ID}.scope", "/ecs/{ID}"] {
            assert_eq!(names(path, &[(file, config)]), expected, "{path}");
        }
        for broken in ["", "[]", "{}", r#"{"Name":7}"#, r#"{"Name":"/"}"#, "{\"Name\":"] {
            assert_eq!(names("/docker/{ID}", &[(file, broken)]), ContainerNames::default());
        }
        assert_eq!(names("/docker/{ID}", &[]), ContainerNames::default());
    }

    #[test]
    fn log_folders_name_a_pod_and_its_container() {
        let log = "var/log/pods/research_train-0_{UID}/main/0.log";
        let link = "var/log/containers/train-0_research_main-{ID}.log";
        let others = [
            "var/log/pods/x_y_z/0.log",
            "var/log/containers/train-0_research_other-0{ID}.log",
            "var/log/containers/a_b_c_d-{ID}.log",
            "var/log/containers/{ID}.log",
        ];
        let of = |path: &str, files: &[&str]| {
            let files: Vec<(&str, &str)> =
                files.iter().chain(&others).map(|file| (*file, "")).collect();
            let found = names(path, &files);
            [found.namespace, found.pod, found.container_in_pod]
        };
        let container = "/kubepods/burstable/pod{UID}/{ID}";
        let (pod, main) = ([some("research"), some("train-0")], some("main"));
        let expected = |main| [pod[0].clone(), pod[1].clone(), main];
        assert_eq!(of(container, &[log, link]), expected(main.clone()));
        assert_eq!(of(container, &[log]), expected(None));
        assert_eq!(of("/kubepods/pod{UID}", &[log, link]), expected(None));
        // If a uid has two names, the name is unknown.
        for other in ["research_train-1_{UID}", "prod_train-0_{UID}"] {
            let other = format!("var/log/pods/{other}/main/0.log");
            assert_eq!(of(container, &[log, link, &other]), [None, None, main.clone()]);
        }
    }

    #[test]
    fn names_are_bounded_and_only_regular_files_are_read() {
        let file = "var/lib/docker/containers/{ID}/config.v2.json";
        let config = format!(r#"{{"Name":"/{}"}}"#, "é".repeat(1000));
        let found = names("/docker/{ID}", &[(file, &config)]);
        assert_eq!(found.container.unwrap().len(), NAME_BYTES - 1);

        let root = tempfile::tempdir().unwrap();
        assert_eq!(read_file(root.path()), None);
        assert_eq!(read_file(Path::new("/dev/null")), None);
        let pipe = root.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        assert_eq!(read_file(&pipe), None);
        assert!(!is_id("../../../../etc/passwd"));
    }

    #[test]
    fn a_container_that_no_cgroup_names_is_found_by_its_first_process() {
        let root = tempfile::tempdir().unwrap();
        let state = r#"{"id":"job-7","init_process_pid":90,"init_process_start":900}"#;
        let status = r#"{"pid":91,"process-start-time":910}"#;
        for (file, content) in [
            ("run/runc/job-7/state.json", state),
            ("run/runc/torn/state.json", "{"),
            ("run/crun/job-8/status", status),
        ] {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        let of = |pid, start| {
            let place = parse_cgroup(b"0::/user.slice/session-3.scope\n");
            let question = NameQuestion::about(&place, Some((pid, start))).unwrap();
            let answer = read_names(root.path(), &question);
            (answer.runtime, answer.id)
        };
        assert_eq!(of(90, 900), (some("runc"), some("job-7")));
        assert_eq!(of(91, 910), (some("crun"), some("job-8")));
        // The pid has been reused by a later process.
        assert_eq!(of(90, 901), (None, None));
        assert_eq!(of(92, 900), (None, None));
    }

    #[test]
    fn a_place_without_a_container_asks_no_question() {
        for path in ["/lxc/web", "/system.slice/a.service", "/"] {
            let place = parse_cgroup(format!("0::{path}\n").as_bytes());
            assert_eq!(NameQuestion::about(&place, None), None, "{path}");
        }
    }

    #[test]
    fn root_has_a_name_and_the_last_number_has_none() {
        let mut users = Users::default();
        assert_eq!(users.name(0, 0).as_deref(), Some("root"));
        assert_eq!(users.name(u32::MAX - 7, 0), None);
    }

    #[test]
    fn an_answer_is_kept_and_a_failure_asked_again() {
        let mut users = Users::default();
        let ann = |_| Ok(Some("ann".to_owned()));
        // A second look-up would return a different name.
        let never = |_| Ok(Some("asked again".to_owned()));
        assert_eq!(users.name_by(7, 0, ann).as_deref(), Some("ann"));
        assert_eq!(users.name_by(7, u64::MAX, never).as_deref(), Some("ann"));
        assert_eq!(users.name_by(8, 0, |_| Err(())), None);
        assert_eq!(users.name_by(8, RETRY_NS - 1, never), None);
        assert_eq!(users.name_by(8, RETRY_NS, ann).as_deref(), Some("ann"));
    }

    #[test]
    fn a_slow_user_directory_blocks_no_sample() {
        let mut users = Users::default();
        let (answers, waits) = std::sync::mpsc::channel::<String>();
        let waits = Arc::new(std::sync::Mutex::new(waits));
        let slow = |waits: &Arc<std::sync::Mutex<std::sync::mpsc::Receiver<String>>>| {
            let waits = Arc::clone(waits);
            move |_| Ok(waits.lock().map_err(drop)?.recv().ok())
        };
        let began = std::time::Instant::now();
        for uid in 7..40 {
            assert_eq!(users.name_by(uid, 0, slow(&waits)), None);
        }
        // Waiting for each of these 33 look-ups would take longer.
        assert!(began.elapsed() < 20 * PATIENCE, "one is waited for, at most");
        for _ in 7..40 {
            answers.send("ann".to_owned()).unwrap();
        }
        let known = |users: &mut Users| users.name_by(9, 0, |_| Ok(None)).is_some();
        let deadline = began + Duration::from_secs(120);
        while !known(&mut users) {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
    }
}
