//! Implements a minimal ZeroMQ client (ZMTP 3.0, RFC 23: greeting, `READY`, frames). The client is a DEALER without
//! security, and uses a connection that the caller has opened and verified.
//!
//! The peer may be hostile. Messages longer than [`MESSAGE_BYTES`] are rejected, no operation waits beyond the
//! [`Deadline`], and a lost connection is not reopened.

use std::io::{self, BufReader, ErrorKind, Read, Write};

use crate::deadline::Deadline;
use crate::host::http::Stream;

/// Maximum length of a message with all its parts. The longest answers, which describe the kernel, have a few
/// kilobytes.
const MESSAGE_BYTES: usize = 1 << 20;
/// Maximum number of parts in a message. Jupyter's messages have six parts after the routing identities, and one more
/// for each buffer.
const PARTS: usize = 32;
const COMMAND_BYTES: usize = 4096;

/// Flag bits of a frame (RFC 23, "Framing").
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Returns the greeting, which contains the signature, version 3.0, the mechanism `NULL`, the client role and zeros.
fn greeting() -> [u8; 64] {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

struct TimedStream {
    stream: Stream,
    until: Deadline,
}

impl TimedStream {
    fn time_left(&self) -> io::Result<std::time::Duration> {
        let time = self.until.left();
        match time.is_zero() {
            true => Err(ErrorKind::TimedOut.into()),
            false => Ok(time),
        }
    }
}

impl Read for TimedStream {
    fn read(&mut self, input: &mut [u8]) -> io::Result<usize> {
        let time = self.time_left()?;
        self.stream.read(input, Some(time))
    }
}

impl Write for TimedStream {
    fn write(&mut self, output: &[u8]) -> io::Result<usize> {
        let time = self.time_left()?;
        self.stream.write(output, Some(time))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct ZmtpFrame {
    is_command: bool,
    has_more: bool,
    content: Vec<u8>,
}

pub(super) struct DealerSocket(BufReader<TimedStream>);

impl DealerSocket {
    /// Exchanges greetings over an open connection. Returns an error if the peer is not a ROUTER without security, or
    /// if the exchange does not finish in time.
    pub fn greet(stream: Stream, until: Deadline) -> io::Result<Self> {
        let mut socket = Self(BufReader::new(TimedStream { stream, until }));
        socket.write(&greeting())?;
        let mut theirs = [0; 64];
        socket.0.read_exact(&mut theirs)?;
        let mechanism = theirs[12..32].split(|byte| *byte == 0).next();
        if theirs[0] != 0xff || theirs[9] & 1 == 0 || theirs[10] < 3 {
            return Err(garbage("not a ZeroMQ greeting"));
        }
        if mechanism != Some(b"NULL") {
            return Err(garbage("ZeroMQ security is enabled"));
        }
        socket.write(&command(b"READY", b"Socket-Type", b"DEALER"))?;
        let frame = socket.read_frame(COMMAND_BYTES)?;
        let properties = frame.content.strip_prefix(b"\x05READY");
        let is_router = |properties: &[u8]| properties.windows(6).any(|part| part == b"ROUTER");
        match properties.filter(|properties| frame.is_command && is_router(properties)) {
            Some(_) => Ok(socket),
            None => Err(garbage("not a ROUTER")),
        }
    }

    pub fn set_deadline(&mut self, until: Deadline) {
        self.0.get_mut().until = until;
    }

    fn write(&mut self, output: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(output).map_err(in_time)
    }

    fn read_frame(&mut self, limit: usize) -> io::Result<ZmtpFrame> {
        let mut byte = [0];
        self.0.read_exact(&mut byte)?;
        let [flags] = byte;
        if flags & !(MORE | LONG | COMMAND) != 0 {
            return Err(garbage("not a ZeroMQ frame"));
        }
        let length = if flags & LONG == 0 {
            self.0.read_exact(&mut byte)?;
            u64::from(byte[0])
        } else {
            let mut length = [0; 8];
            self.0.read_exact(&mut length)?;
            u64::from_be_bytes(length)
        };
        let length = usize::try_from(length).ok().filter(|length| *length <= limit);
        let Some(length) = length else {
            return Err(garbage("message too long"));
        };
        let mut content = vec![0; length];
        self.0.read_exact(&mut content)?;
        Ok(ZmtpFrame { is_command: flags & COMMAND != 0, has_more: flags & MORE != 0, content })
    }

    pub(super) fn read_message(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut bytes_left = MESSAGE_BYTES;
        loop {
            let frame = self.read_frame(bytes_left).map_err(in_time)?;
            if frame.is_command {
                continue;
            }
            bytes_left -= frame.content.len();
            parts.push(frame.content);
            if parts.len() > PARTS {
                return Err(garbage("too many message parts"));
            }
            if !frame.has_more {
                return Ok(parts);
            }
        }
    }

    pub(super) fn write_message(&mut self, parts: &[Vec<u8>]) -> io::Result<()> {
        let mut output = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let more = if index + 1 < parts.len() { MORE } else { 0 };
            match u8::try_from(part.len()) {
                Ok(length) => output.extend([more, length]),
                Err(_) => {
                    output.push(more | LONG);
                    output.extend((part.len() as u64).to_be_bytes());
                }
            }
            output.extend_from_slice(part);
        }
        self.write(&output)
    }
}

fn command(name: &[u8], property: &[u8], value: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    for text in [name, property] {
        body.push(text.len() as u8);
        body.extend_from_slice(text);
    }
    body.extend((value.len() as u32).to_be_bytes());
    body.extend_from_slice(value);
    [&[COMMAND, body.len() as u8], &body[..]].concat()
}

fn garbage(reason: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}

pub(super) fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

/// Returns an error of kind `TimedOut` for both error kinds that Linux reports after a timeout, and other errors
/// unchanged.
fn in_time(error: io::Error) -> io::Error {
    match is_late(&error) {
        true => ErrorKind::TimedOut.into(),
        false => error,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Exchanges greetings with a peer that writes exactly the given bytes, and reads a message.
    fn read(written: Vec<u8>, time: Duration) -> io::Result<Vec<Vec<u8>>> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let writing = thread::spawn(move || {
            // The client may close the connection before all bytes are written.
            let _ = theirs.write_all(&written);
            let _ = theirs.shutdown(Shutdown::Write);
            theirs
        });
        let until = Deadline::after(time);
        let read = DealerSocket::greet(Stream(ours.into()), until)
            .map_err(in_time)
            .and_then(|mut socket| socket.read_message());
        drop(writing.join().unwrap());
        read
    }

    fn greeted(frames: &[u8]) -> Vec<u8> {
        let ready = command(b"READY", b"Socket-Type", b"ROUTER");
        [&greeting()[..], &ready, frames].concat()
    }

    fn why(written: Vec<u8>) -> String {
        let error = read(written, MINUTE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        error.to_string()
    }

    #[test]
    fn messages_are_read_and_commands_are_skipped() {
        let ping = command(b"PING", b"", b"");
        let long = [&[LONG | MORE, 0, 0, 0, 0, 0, 0, 1, 44][..], &[7; 300]].concat();
        let written = greeted(&[&ping[..], &[MORE, 2, b'a', b'b'], &long, &[0, 0]].concat());
        let message = read(written, MINUTE).unwrap();
        let lengths: Vec<usize> = message.iter().map(Vec::len).collect();
        assert_eq!(lengths, [2, 300, 0]);
    }

    #[test]
    fn oversized_messages_are_refused_before_allocation() {
        for length in [1_u64 << 30, 1 << 62, u64::MAX, MESSAGE_BYTES as u64 + 1] {
            for flags in [LONG, LONG | MORE, LONG | COMMAND] {
                let header = [&[flags][..], &length.to_be_bytes()].concat();
                assert_eq!(why(greeted(&header)), "message too long");
            }
        }
        // The limit applies to the sum of all parts of a message.
        let part = [&[LONG | MORE, 0, 0, 0, 0, 0, 4, 0, 0][..], &vec![0; 1 << 18]].concat();
        assert_eq!(why(greeted(&part.repeat(5))), "message too long");
        let empty = [MORE, 0].repeat(PARTS + 1);
        assert_eq!(why(greeted(&empty)), "too many message parts");
    }

    #[test]
    fn only_a_router_without_security_is_accepted() {
        assert_eq!(why(vec![b'x'; 64]), "not a ZeroMQ greeting");
        let mut curve = greeting();
        curve[12..17].copy_from_slice(b"CURVE");
        assert_eq!(why(curve.to_vec()), "ZeroMQ security is enabled");
        let mut old = greeting();
        old[10] = 1;
        assert_eq!(why(old.to_vec()), "not a ZeroMQ greeting");
        let dealer = command(b"READY", b"Socket-Type", b"DEALER");
        assert_eq!(why([&greeting()[..], &dealer].concat()), "not a ROUTER");
        let error = command(b"ERROR", b"no", b"ROUTER");
        assert_eq!(why([&greeting()[..], &error].concat()), "not a ROUTER");
        assert_eq!(why(greeted(&[0x88, 0])), "not a ZeroMQ frame");
    }

    #[test]
    fn no_operation_exceeds_the_deadline() {
        let begun = Instant::now();
        let short = Duration::from_millis(30);
        for written in [vec![], greeting().to_vec(), greeted(&[]), greeted(&[0, 9, 1])] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(&written).unwrap();
            let until = Deadline::after(short);
            let read = DealerSocket::greet(Stream(ours.into()), until)
                .map_err(in_time)
                .and_then(|mut socket| socket.read_message());
            assert_eq!(read.unwrap_err().kind(), ErrorKind::TimedOut);
        }
        assert!(begun.elapsed() < MINUTE / 2);
        let ended = read(greeted(&[0, 9, 1]), MINUTE).unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_written_message_is_read_by_the_peer() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut socket = DealerSocket(BufReader::new(TimedStream {
            stream: Stream(ours.into()),
            until: Deadline::after(MINUTE),
        }));
        let message = vec![vec![1; 255], vec![2; 256], Vec::new()];
        socket.write_message(&message).unwrap();
        let mut peer = DealerSocket(BufReader::new(TimedStream {
            stream: Stream(theirs.into()),
            until: Deadline::after(MINUTE),
        }));
        assert_eq!(peer.read_message().unwrap(), message);
    }
}
