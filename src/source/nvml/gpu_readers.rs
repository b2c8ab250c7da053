//! The threads that read the GPUs: one for all that answer, and one of its own for each that is late.
//!
//! The shared thread reads one GPU after the other. Whatever it has not come to within a moment is read by
//! threads of their own instead, and it is left behind with the GPU that keeps it: so a GPU that hangs keeps
//! a thread and nothing else, whoever was to be read after it. What a reader knows of its GPU is with the
//! GPU, not with the thread, and goes on on any other.
//!
//! Which GPU may be asked, and what an answer means, is in `asked_gpu`.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;

use super::calls::CallProgress;
use super::device::{DeviceReader, Reading};

/// Between snapshots that are far apart, process utilization is gathered this often: the driver
/// keeps about 10 s of it.
const GATHER_EVERY: Duration = Duration::from_secs(4);
/// A lost GPU's handle is looked up again this often.
const LOOK_UP_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// A GPU that takes longer is read by a thread of its own the next time.
const SLOW_AFTER: Duration = Duration::from_millis(50);

/// What was read of one GPU.
#[derive(Debug)]
pub(super) struct Reply {
    /// NVML's index of the GPU.
    pub(super) index: u32,
    /// What it read.
    pub(super) reading: Reading,
    /// It took long: the others should not wait for it.
    pub(super) is_slow: bool,
}

/// What is known of one GPU from reading to reading, on whichever thread.
struct GpuReader {
    nvml: Arc<Nvml>,
    index: u32,
    progress: Arc<CallProgress>,
    /// `None` until it was looked up, and again once it is lost.
    device: Option<DeviceReader>,
    opened: Instant,
}

impl GpuReader {
    fn read(&mut self) -> Reply {
        let begun = Instant::now();
        if self.device.is_none() {
            self.opened = begun;
        }
        let reading = match &mut self.device {
            Some(device) => device.sample(),
            none => match DeviceReader::open(&self.nvml, self.index, Arc::clone(&self.progress)) {
                Ok(opened) => none.insert(opened).sample(),
                Err(failure) => *failure,
            },
        };
        if reading.lost && self.opened.elapsed() > LOOK_UP_AGAIN_AFTER {
            self.device = None;
        }
        Reply { index: self.index, reading, is_slow: begun.elapsed() > SLOW_AFTER }
    }
}

/// The GPUs that are still to be read for one sample, and what was read.
#[derive(Debug, Default)]
struct GpuBatch(Mutex<(VecDeque<u32>, Vec<Reply>)>);

impl GpuBatch {
    fn next(&self) -> Option<u32> {
        lock(&self.0).0.pop_front()
    }

    fn add(&self, reply: Reply) {
        lock(&self.0).1.push(reply);
    }

    fn take(&self) -> Vec<Reply> {
        std::mem::take(&mut lock(&self.0).1)
    }
}

/// The GPUs' readers and their threads.
#[derive(Debug)]
pub(super) struct GpuReaders {
    readers: Arc<[Mutex<GpuReader>]>,
    progress: Vec<Arc<CallProgress>>,
    replies: (Sender<Vec<Reply>>, Receiver<Vec<Reply>>),
    /// The shared thread, unless it was left behind.
    shared: Option<Sender<Arc<GpuBatch>>>,
    /// What it was given last, until that is read.
    batch: Option<Arc<GpuBatch>>,
    /// Those that were asked for and got no thread.
    unread: Vec<u32>,
}

impl GpuReaders {
    /// Readers of so many GPUs, and their thread.
    pub(super) fn start(nvml: &Arc<Nvml>, gpus: u32) -> io::Result<Self> {
        let progress: Vec<_> = (0..gpus).map(|_| Arc::default()).collect();
        let reader = |(index, progress): (u32, &Arc<CallProgress>)| {
            Mutex::new(GpuReader {
                nvml: Arc::clone(nvml),
                index,
                progress: Arc::clone(progress),
                device: None,
                opened: Instant::now(),
            })
        };
        let mut readers = Self {
            readers: (0..).zip(&progress).map(reader).collect(),
            progress,
            replies: channel(),
            shared: None,
            batch: None,
            unread: Vec::new(),
        };
        readers.start_shared()?;
        Ok(readers)
    }

    /// The calls that the threads are in, by GPU.
    pub(super) fn progress(&self) -> &[Arc<CallProgress>] {
        &self.progress
    }

    /// Has these GPUs read one after the other, those each by itself. One that is being read must not be asked
    /// for again.
    pub(super) fn ask(&mut self, together: VecDeque<u32>, alone: Vec<u32>) {
        self.read_alone(alone);
        if together.is_empty() {
            return;
        }
        let batch = Arc::new(GpuBatch(Mutex::new((together, Vec::new()))));
        // It ends only when it is dropped here.
        if let Ok(shared) = self.start_shared()
            && shared.send(Arc::clone(&batch)).is_ok()
        {
            self.batch = Some(batch);
        } else {
            self.unread.extend(&lock(&batch.0).0);
        }
    }

    /// Those that were asked for and will not be read, since the system gives no thread.
    pub(super) fn take_unread(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.unread)
    }

    /// Whether the shared thread is still reading.
    pub(super) fn is_reading(&self) -> bool {
        self.batch.is_some()
    }

    /// What was read, waiting for it as long as is given.
    pub(super) fn take(&mut self, time: Duration) -> Option<Vec<Reply>> {
        let replies = self.replies.1.recv_timeout(time).ok()?;
        // Of the shared thread, where it has come to the end.
        self.batch.take_if(|it| Arc::strong_count(it) == 1);
        Some(replies)
    }

    /// Has what the shared thread has not come to read by threads of their own, and leaves it behind; answers
    /// what it has read.
    pub(super) fn spread(&mut self) -> Vec<Reply> {
        let Some(batch) = self.batch.take() else {
            return Vec::new();
        };
        self.shared = None;
        let waiting = std::mem::take(&mut lock(&batch.0).0);
        self.read_alone(waiting);
        batch.take()
    }

    fn read_alone(&mut self, gpus: impl IntoIterator<Item = u32>) {
        let start = |index: &u32| {
            let (index, readers) = (*index, Arc::clone(&self.readers));
            let replies = self.replies.0.clone();
            let read = move || {
                if let Some(reader) = readers.get(index as usize) {
                    // The caller may have given up.
                    let _ = replies.send(vec![lock(reader).read()]);
                }
            };
            let builder = thread::Builder::new().name(format!("nvml-gpu{index}"));
            builder.spawn(read).is_err()
        };
        self.unread.extend(gpus.into_iter().filter(start));
    }

    /// The shared thread, which is started where it was left behind.
    fn start_shared(&mut self) -> io::Result<&Sender<Arc<GpuBatch>>> {
        let sender = match self.shared.take() {
            Some(sender) => sender,
            None => {
                let (sender, inbox) = channel();
                let (readers, replies) = (Arc::clone(&self.readers), self.replies.0.clone());
                thread::Builder::new()
                    .name("nvml".to_owned())
                    .spawn(move || read_together(&readers, &inbox, &replies))?;
                sender
            }
        };
        Ok(self.shared.insert(sender))
    }
}

impl std::fmt::Debug for GpuReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuReader").field("index", &self.index).finish_non_exhaustive()
    }
}

/// The shared thread: reads batch after batch, until there are no more senders.
fn read_together(
    readers: &[Mutex<GpuReader>],
    inbox: &Receiver<Arc<GpuBatch>>,
    replies: &Sender<Vec<Reply>>,
) {
    loop {
        match inbox.recv_timeout(GATHER_EVERY) {
            Ok(batch) => {
                while let Some(index) = batch.next() {
                    if let Some(reader) = readers.get(index as usize) {
                        batch.add(lock(reader).read());
                    }
                }
                let read = batch.take();
                drop(batch);
                if replies.send(read).is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                for reader in readers {
                    // One that is being read needs nothing else.
                    if let Ok(mut reader) = reader.try_lock()
                        && let Some(device) = &mut reader.device
                    {
                        device.gather_utilization();
                    }
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
