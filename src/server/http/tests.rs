use super::*;

fn start() -> MetricsServer {
    MetricsServer::start("127.0.0.1:0".parse().unwrap(), Arc::default()).unwrap()
}

fn connect(server: &MetricsServer) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Sends `request` and reads to the end.
fn ask(server: &MetricsServer, request: &[u8]) -> String {
    let mut stream = connect(server);
    // It may answer and hang up before all of it is sent.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn get(server: &MetricsServer) -> String {
    ask(server, b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n")
}

#[test]
fn metrics_are_answered_with_their_length_and_type() {
    let server = start();
    let answer = get(&server);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    assert!(head.contains(CONTENT_TYPE), "{head}");
    assert!(body.contains("millrace_build_info{"), "{body}");
    let head = ask(&server, b"HEAD / HTTP/1.0\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn whatever_else_is_asked_gets_its_status() {
    let server = start();
    for (request, status) in [
        (&b"GET /other HTTP/1.1\r\n\r\n"[..], "404"),
        (b"GET /metrics?name=x HTTP/1.1\r\n\r\n", "200"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405"),
        (b"GET /metrics HTTP/2.0\r\n\r\n", "400"),
        (b"GET /metrics\r\n\r\n", "400"),
        (b"\xff\xfe\x00 / HTTP/1.1\r\n\r\n", "400"),
        (b"\r\n\r\n", "400"),
    ] {
        let answer = ask(&server, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    let mut long = b"GET /metrics HTTP/1.1\r\nX: ".to_vec();
    long.resize(MOST, b'x');
    assert!(ask(&server, &long).starts_with("HTTP/1.1 431 "));
    assert!(get(&server).starts_with("HTTP/1.1 200"), "it still serves");
}

#[test]
fn visitors_who_do_not_ask_are_shown_out_and_the_next_is_served() {
    let server = start();
    // More than there is room for: they say half a sentence, and nothing more.
    let mut idle: Vec<TcpStream> = (0..2 * CONNECTIONS).map(|_| connect(&server)).collect();
    idle.iter_mut().for_each(|stream| stream.write_all(b"GET /metr").unwrap());
    assert!(get(&server).starts_with("HTTP/1.1 200"), "served once the limit frees a place");
    for mut stream in idle.drain(..CONNECTIONS) {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "no answer to half a question");
    }
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let server = start();
    let mut stream = connect(&server);
    stream.set_nodelay(true).unwrap();
    for byte in b"GET / HTTP/1.1\r\n\r\n" {
        stream.write_all(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

#[test]
fn a_visitor_who_talks_for_ever_does_not_stop_the_others() {
    let server = start();
    let mut talker = connect(&server);
    talker.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let address = server.address();
    let talking = std::thread::spawn(move || {
        let words = [b'x'; 65_536];
        while talker.write_all(&words).is_ok() {}
        address
    });
    for _ in 0..5 {
        assert!(get(&server).starts_with("HTTP/1.1 200"));
    }
    assert_eq!(talking.join().unwrap(), server.address(), "and the talker is cut off");
}

#[test]
fn a_port_in_use_is_an_error() {
    let server = start();
    let error = MetricsServer::start(server.address(), Arc::default()).unwrap_err();
    assert!(error.report().contains(&server.address().to_string()), "{}", error.report());
}
