//! Requests and parsed answers, with this process as the server.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};

use super::*;
use crate::host::http::{Endpoint, Listener};
use crate::host::read_start_ticks;

/// Serves one answer, and returns the request it received.
fn serve(answer: Vec<u8>) -> (Server, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pid = std::process::id();
    let server = Server {
        listener: Listener {
            pid,
            start_ticks: read_start_ticks("/proc".as_ref(), pid).unwrap().unwrap(),
            endpoint: Endpoint::Tcp {
                host: "localhost".to_owned(),
                port: listener.local_addr().unwrap().port(),
            },
            is_https: false,
        },
        base_url: "/user/ann/".to_owned(),
        token: super::super::Token::new("s3cret"),
    };
    let thread = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            asked.push(byte[0]);
        }
        // The client may close before the end.
        let _ = stream.write_all(&answer);
        String::from_utf8(asked).unwrap()
    });
    (server, thread)
}

fn sessions(answer: &str) -> (Result<Vec<KernelState>, ServerError>, String) {
    let (server, thread) = serve(answer.as_bytes().to_vec());
    let client = Client::new(&Roots::default(), &server).unwrap();
    let shown = format!("{client:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    let sessions = client.sessions(Duration::from_secs(20));
    (sessions, thread.join().unwrap())
}

#[test]
fn a_request_goes_below_the_base_with_the_token() {
    let body = r#"[{"path": "a.ipynb", "kernel": {"id": "k", "execution_state": "idle",
        "last_activity": "2026-11-21T16:01:46.482243Z", "connections": 1}}, {"kernel": null}]"#;
    let (first, second) = body.split_at(50);
    let chunked = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n",
        first.len(),
        second.len()
    );
    let (states, asked) = sessions(&chunked);
    assert!(asked.starts_with("GET /user/ann/api/sessions HTTP/1.1\r\n"));
    assert!(asked.contains("authorization: token s3cret\r\n"), "{asked}");
    let expected = KernelState {
        id: "k".to_owned(),
        path: Some("a.ipynb".to_owned()),
        execution_state: Some("idle".to_owned()),
        last_activity: Some("2026-11-21T16:01:46.482Z".parse().unwrap()),
        connections: Some(1),
    };
    assert_eq!(states, Ok(vec![expected]));
}

#[test]
fn what_a_kernel_lacks_is_unknown() {
    let body = r#"[{"path": "", "kernel": {"id": "k", "last_activity": "yesterday", "more": {}}}]"#;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    let (states, _) = sessions(&format!("{head}{body}"));
    let state = &states.unwrap()[0];
    assert_eq!((&state.path, &state.execution_state), (&None, &None));
    assert_eq!((state.last_activity, state.connections), (None, None));
}

#[test]
fn a_bad_answer_is_an_error_that_names_the_request() {
    let request = "GET api/sessions";
    for (answer, expected) in [
        ("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", ServerError::Refused { request }),
        (
            "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
            ServerError::Redirects { request },
        ),
        (
            "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
            ServerError::Status { request, status: 500 },
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", ServerError::NotJupyter { request }),
    ] {
        assert_eq!(sessions(answer).0, Err(expected), "{answer}");
    }
    for answer in ["", "SSH-2.0-x\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n["] {
        let (states, _) = sessions(answer);
        assert!(matches!(states, Err(ServerError::Request { .. })), "{answer} {states:?}");
    }
}

#[test]
fn who_does_not_hold_the_port_is_not_connected_to() {
    let (server, _thread) = serve(Vec::new());
    let pid = server.listener.pid;
    let mut other = server.clone();
    other.listener.start_ticks += 1;
    assert_eq!(
        Client::new(&Roots::default(), &other).unwrap_err(),
        ServerError::NotConnected(HttpError::Ended { pid })
    );
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    let mut other = server;
    other.listener.endpoint = Endpoint::Tcp { host: "localhost".to_owned(), port };
    assert!(matches!(
        Client::new(&Roots::default(), &other).unwrap_err(),
        ServerError::NotConnected(HttpError::NotListening { is_known: true, .. })
    ));
}

const ID: &str = "0a1b2c3d-0123-4567-89ab-00aa11bb22cc";
const TIME: Duration = Duration::from_secs(20);

#[test]
fn one_kernel_is_asked_for_by_its_id() {
    let answered = |status: &str, body: &str| {
        let length = body.len();
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
        let (server, thread) = serve(answer.into_bytes());
        let client = Client::new(&Roots::default(), &server).unwrap();
        let state = client.kernel(ID, TIME);
        let asked = thread.join().unwrap();
        let line = format!("GET /user/ann/api/kernels/{ID} HTTP/1.1\r\n");
        assert!(asked.starts_with(&line), "{asked}");
        state
    };
    let body = format!(r#"{{"id": "{ID}", "execution_state": "idle"}}"#);
    let state = answered("200 OK", &body).unwrap();
    assert_eq!(state.execution_state.as_deref(), Some("idle"));
    let request = "GET api/kernels/ID";
    for (status, body, expected) in [
        ("404 Not Found", "", ServerError::UnknownKernel),
        ("200 OK", r#"{"id": "another"}"#, ServerError::NotJupyter { request }),
        ("403 Forbidden", "", ServerError::Refused { request }),
    ] {
        assert_eq!(answered(status, body), Err(expected), "{status}");
    }
}

#[test]
fn a_kernel_is_shut_down_where_the_server_confirms_it() {
    let request = "DELETE api/kernels/ID";
    for (status, expected) in [
        ("204 No Content", Ok(())),
        ("404 Not Found", Err(ServerError::UnknownKernel)),
        ("403 Forbidden", Err(ServerError::Refused { request })),
        ("302 Found\r\nLocation: http://127.0.0.1:1/", Err(ServerError::Redirects { request })),
        ("500 Oops", Err(ServerError::Status { request, status: 500 })),
    ] {
        let length = if status.starts_with("204") { "" } else { "\r\nContent-Length: 0" };
        let (server, thread) = serve(format!("HTTP/1.1 {status}{length}\r\n\r\n").into());
        let client = Client::new(&Roots::default(), &server).unwrap();
        assert_eq!(client.shut_down(ID, TIME), expected, "{status}");
        let asked = thread.join().unwrap();
        let line = format!("DELETE /user/ann/api/kernels/{ID} HTTP/1.1\r\n");
        assert!(asked.starts_with(&line), "{asked}");
        assert!(asked.contains("authorization: token s3cret\r\n"), "{asked}");
    }
}

#[test]
fn an_id_that_leads_elsewhere_is_not_sent() {
    let (server, _thread) = serve(Vec::new());
    let client = Client::new(&Roots::default(), &server).unwrap();
    for id in ["", "../sessions/1", "a?b", &format!("{ID}/restart")] {
        assert_eq!(client.shut_down(id, TIME), Err(ServerError::UnknownKernel));
        assert_eq!(client.kernel(id, TIME), Err(ServerError::UnknownKernel));
    }
}
