//! Commands, errors and bounds, as bytes.

use super::*;

#[test]
fn a_key_gets_its_burst_and_is_then_limited_with_the_time_to_wait() {
    let (_server, address) = plain();
    let mut client = Raw::connect(address);
    for left in [2, 1, 0] {
        let answer = client.ask("CL.THROTTLE ann 2 1 3600");
        assert_eq!(answer, format!("0 3 {left} -1 {}", (3 - left) * 3600));
    }
    let limited = client.ask("throttle ann 2 1 3600");
    assert!(limited == "1 3 0 3600 10800", "{limited}");
    assert_eq!(client.ask("CL.THROTTLE bob 2 1 3600"), "0 3 2 -1 3600");
    assert_eq!(client.ask("RESET ann"), "+OK");
    assert_eq!(client.ask("CL.THROTTLE ann 2 1 3600 3"), "0 3 0 -1 10800");
}

#[test]
fn ten_of_a_burst_of_ten_pass_and_the_eleventh_is_limited() {
    let (_server, address) = plain();
    let mut client = Raw::connect(address);
    for left in (0..10).rev() {
        let answer = client.ask("CL.THROTTLE ann 9 10 36000");
        assert!(answer.starts_with(&format!("0 10 {left} -1 ")), "{answer}");
    }
    let limited = client.ask("CL.THROTTLE ann 9 10 36000");
    assert!(limited.starts_with("1 10 0 "), "{limited}");
}

#[test]
fn s8_a_web_page_runs_no_command() {
    let (_server, address) = plain();
    let mut client = Raw::connect(address);
    assert_eq!(client.ask("CL.THROTTLE ann 0 1 3600"), "0 1 0 -1 3600");
    for page in [
        "POST / HTTP/1.1\r\nHost: localhost:6379\r\nContent-Type: text/plain\r\n\r\nRESET ann\r\n",
        "GET /\r\nHost: localhost\r\n\r\nRESET ann\r\n",
        "OPTIONS * HTTP/1.1\r\nRESET ann\r\n",
        "PING\r\nHOST: localhost\r\nRESET ann\r\n",
    ] {
        let mut browser = Raw::connect(address);
        browser.send(page);
        let mut said = String::new();
        // Cut off, perhaps before everything was read: what counts is what was done.
        let _ = browser.0.read_to_string(&mut said);
        assert!(!said.contains("OK"), "{page}: {said}");
        let limited = client.ask("CL.THROTTLE ann 0 1 3600");
        assert!(limited.starts_with("1 1 0 "), "{page}: {limited}");
    }
    // Line by line, as slowly as one likes.
    let mut slow = Raw::connect(address);
    slow.send("POST / HTTP/1.1\r\n");
    assert!(slow.has_ended());
}

#[test]
fn a_look_takes_nothing() {
    let (_server, address) = plain();
    let mut client = Raw::connect(address);
    for _ in 0..3 {
        assert_eq!(client.ask("PEEK ann 2 1 3600"), "0 3 3 -1 0");
        assert_eq!(client.ask("CL.THROTTLE ann 2 1 3600 0"), "0 3 3 -1 0");
    }
    assert_eq!(client.ask("CL.THROTTLE ann 2 1 3600 3"), "0 3 0 -1 10800");
    assert_eq!(client.ask("PEEK ann 2 1 3600 2"), "1 3 0 7200 10800");
    assert_eq!(client.ask("CL.THROTTLE ann 2 1 3600 0"), "0 3 0 -1 10800");
    assert_eq!(client.ask("CL.THROTTLE ann 2 1 3600 4"), "1 3 0 -1 10800");
}

#[test]
fn what_clients_say_around_it_is_answered() {
    let (_server, address) = plain();
    let mut client = Raw::connect(address);
    assert_eq!(client.ask("PING"), "+PONG");
    assert_eq!(client.ask("PING hello"), "hello");
    assert_eq!(client.ask("ECHO \"two words\""), "two words");
    assert_eq!(client.ask("SELECT 0"), "+OK");
    assert_eq!(client.ask("SELECT 1"), "-ERR DB index is out of range");
    assert_eq!(client.ask("CLIENT SETINFO LIB-NAME test"), "+OK");
    assert_eq!(client.ask("CLIENT SETNAME test"), "+OK");
    assert_eq!(client.ask("CLIENT GETNAME"), "nil");
    assert!(client.ask("CLIENT ID").parse::<u64>().is_ok());
    assert!(
        client
            .ask("CLIENT LIST")
            .starts_with("-ERR unknown subcommand")
    );
    assert_eq!(client.ask("COMMAND COUNT"), "14");
    let list = client.ask("COMMAND");
    assert!(list.starts_with("cl.throttle -5 +fast 1 1 1 "), "{list}");
    assert_eq!(client.ask("COMMAND INFO peek"), "peek -5 +fast 1 1 1");
    assert_eq!(client.ask("COMMAND INFO get"), "nil");
    assert_eq!(client.ask("COMMAND DOCS ping"), "");
    assert!(client.ask("INFO server").contains("loading:0"));
    assert_eq!(client.ask("MODE"), "normal");
    assert!(client.ask("GET x").starts_with("-ERR unknown command"));
    assert_eq!(
        client.ask("CL.THROTTLE ann 1"),
        "-ERR wrong number of arguments for 'cl.throttle' command"
    );
    let refused = client.ask("CL.THROTTLE ann -7 1 1");
    assert!(refused.starts_with("-ERR `max_burst` must be"), "{refused}");
    assert_eq!(client.ask("RESET"), "+RESET");
    assert_eq!(client.ask("QUIT"), "+OK");
    assert!(client.has_ended());
}

#[test]
fn both_versions_are_spoken() {
    let (_server, address) = plain();
    let mut client = Raw::connect(address);
    client.send("HELLO 3\r\n");
    assert_eq!(client.line(), "%7");
    let rest: Vec<String> = (0..14).map(|_| client.answer()).collect();
    assert_eq!(&rest[..2], ["server", "palisade"]);
    assert_eq!(&rest[4..6], ["proto", "3"]);
    client.send("CLIENT GETNAME\r\n");
    assert_eq!(client.line(), "_");
    assert_eq!(client.ask("CL.THROTTLE ann 2 1 3600"), "0 3 2 -1 3600");
    client.send("HELLO 2\r\n");
    assert_eq!(client.line(), "*14");
    (0..14).for_each(|_| drop(client.answer()));
    client.send("CLIENT GETNAME\r\n");
    assert_eq!(client.line(), "$-1");
    assert!(client.ask("HELLO 4").starts_with("-NOPROTO"));
}

#[test]
fn a_pipeline_is_answered_in_order_whatever_it_is_made_of() {
    let (_server, address) = plain();
    let mut client = Raw::connect(address);
    let mut bytes = Vec::new();
    for number in 0..500 {
        bytes.extend(request(&["PING", &number.to_string()]));
        bytes.extend(request(&["CL.THROTTLE", "all", "999", "1", "60"]));
        bytes.extend(request(&[
            "CL.THROTTLE",
            &number.to_string(),
            "9",
            "1",
            "60",
        ]));
        bytes.extend(request(&["CL.THROTTLE", "all", "x", "1", "60"]));
    }
    client.send(&bytes);
    for number in 0..500 {
        assert_eq!(client.answer(), number.to_string());
        let all = client.answer();
        assert!(
            all.starts_with(&format!("0 1000 {} -1 ", 999 - number)),
            "{number}: {all}"
        );
        assert_eq!(client.answer(), "0 10 9 -1 60");
        assert!(client.answer().starts_with("-ERR `max_burst`"));
    }
}

#[test]
fn a_request_may_arrive_byte_by_byte() {
    let (_server, address) = plain();
    let mut client = Raw::connect(address);
    for byte in request(&["CL.THROTTLE", "ann", "2", "1", "3600"]) {
        client.send([byte]);
    }
    assert_eq!(client.answer(), "0 3 2 -1 3600");
}

#[test]
fn beyond_its_bounds_a_connection_ends_with_a_reason() {
    let (_server, address) = plain();
    for (input, reason) in [
        (b"*33\r\n".to_vec(), "invalid multibulk length"),
        (b"*1\r\n$16385\r\n".to_vec(), "invalid bulk length"),
        (b"*1\r\n+PING\r\n".to_vec(), "expected '$'"),
        (vec![b'x'; 16 * 1024], "too big inline request"),
        (b"PING \"x\r\n".to_vec(), "unbalanced quotes"),
        (
            request(&["x".repeat(16_000).as_str(); 5]),
            "too big request",
        ),
    ] {
        let mut client = Raw::connect(address);
        client.send(request(&["PING"]));
        client.send(input);
        assert_eq!(client.answer(), "+PONG");
        let said = client.answer();
        assert!(said.starts_with("-ERR Protocol error: "), "{said}");
        assert!(said.contains(reason), "{said}");
        assert!(client.has_ended(), "{reason}");
    }
    let mut client = Raw::connect(address);
    let long = "k".repeat(1025);
    let refused = client.ask(&format!("CL.THROTTLE {long} 1 1 1"));
    assert_eq!(refused, "-ERR `key` must be 1 to 1024 bytes long");
    assert_eq!(client.ask("PING"), "+PONG");
}

#[test]
fn a_client_that_takes_no_answers_is_not_read_on_and_is_cut_off() {
    let config = "[store]\nurl = \"memory:\"\n[server]\nidle_timeout = \"1s\"\n";
    let (_server, address) = start(config, &[]);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let ping = request(&["PING", &"x".repeat(10_000)]).repeat(10);
    let mut sent = 0_u64;
    while stream.write_all(&ping).is_ok() {
        sent += ping.len() as u64;
        assert!(sent < 1 << 30, "answers pile up");
    }
}

#[test]
fn a_request_that_trickles_is_cut_off() {
    let config = "[store]\nurl = \"memory:\"\n[server]\nheader_timeout = \"200ms\"\n";
    let (_server, address) = start(config, &[]);
    let mut client = Raw::connect(address);
    assert_eq!(client.ask("PING"), "+PONG");
    let pause = std::time::Duration::from_millis(30);
    let cut_off = (0..PATIENCE.as_millis() / 30).any(|_| {
        std::thread::sleep(pause);
        client.0.get_mut().write_all(b"x").is_err()
    });
    assert!(cut_off, "a byte now and then keeps it open");
}

const TOKEN: (&str, &str) = ("TOKEN", "a-callers-token-of-decent-length");

#[test]
fn without_the_token_nothing_is_decided() {
    let config = "[store]\nurl = \"memory:\"\n[server]\ncaller_token = \"env:TOKEN\"\n";
    let (_server, address) = start(config, &[TOKEN]);
    let mut client = Raw::connect(address);
    for line in ["PING", "CL.THROTTLE k 1 1 1", "RESET k", "INFO", "COMMAND"] {
        assert_eq!(
            client.ask(line),
            "-NOAUTH Authentication required.",
            "{line}"
        );
    }
    assert!(client.ask("HELLO 3").starts_with("-NOAUTH"));
    assert!(client.ask("AUTH wrong").starts_with("-WRONGPASS"));
    assert!(
        client
            .ask("HELLO 3 AUTH default wrong")
            .starts_with("-WRONGPASS")
    );
    assert_eq!(client.ask("AUTH a-callers-token-of-decent-length"), "+OK");
    assert_eq!(client.ask("PING"), "+PONG");
    assert_eq!(client.ask("RESET"), "+RESET");
    assert!(client.ask("PING").starts_with("-NOAUTH"), "as at the start");
    let greeted = client.ask("HELLO 2 AUTH default a-callers-token-of-decent-length");
    assert!(greeted.starts_with("server palisade"), "{greeted}");
    assert_eq!(client.ask("PING"), "+PONG");

    let mut guesser = Raw::connect(address);
    for _ in 0..8 {
        assert!(guesser.ask("AUTH guess").starts_with("-WRONGPASS"));
    }
    assert!(guesser.has_ended(), "guesses are bounded");
}

#[test]
fn off_loopback_a_token_and_tls_are_needed() {
    let home = tempfile::tempdir().unwrap();
    let output = common::palisade()
        .current_dir(home.path())
        .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .args(["--resp", "0.0.0.0:0"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("`server.resp` is not loopback"), "{said}");
}

#[test]
fn a_stopping_service_answers_what_it_has_and_ends_connections() {
    let (server, address) = plain();
    let mut client = Raw::connect(address);
    assert_eq!(client.ask("CL.THROTTLE ann 2 1 3600"), "0 3 2 -1 3600");
    server.terminate();
    assert!(client.has_ended());
    assert_eq!(server.wait().0, Some(0));
}

#[test]
fn keys_appear_nowhere_and_decisions_are_counted() {
    let (server, address) = plain();
    let mut client = Raw::connect(address);
    for _ in 0..3 {
        client.ask("CL.THROTTLE secret-subject 1 1 3600");
    }
    let metrics = server.admin_get("/metrics");
    let text = metrics.text();
    let allowed = "rate_limiter_keyed_decisions_total{decision=\"allow\",mode=\"normal\"} 2";
    let denied = "rate_limiter_keyed_decisions_total{decision=\"deny\",mode=\"normal\"} 1";
    assert!(text.contains(allowed) && text.contains(denied), "{text}");
    assert!(!text.contains("secret-subject"));
    assert!(!server.printed.lock().unwrap().contains("secret-subject"));
}

/// Each worker that serves an address has a socket of its own on it.
#[test]
fn all_workers_but_one_serve_redis_clients_unless_told_otherwise() {
    for (config, expected) in [
        ("workers = 3", 2),
        ("workers = 1", 1),
        ("workers = 3\nresp_workers = 3", 3),
        ("workers = 2\nresp_workers = 8", 2),
    ] {
        let config = format!("[store]\nurl = \"memory:\"\n[server]\n{config}\n");
        let (_server, address) = start(&config, &[]);
        let listens = format!(":{:04X} 00000000:0000 0A ", address.port());
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        assert_eq!(table.matches(&listens).count(), expected, "{config}");
    }
}
