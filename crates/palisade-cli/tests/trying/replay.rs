//! What `palisade replay` reads, what it decides, and what memory it takes.

use std::io::Write;

use super::*;

#[test]
fn replay_reads_gzip_standard_input_and_the_other_formats() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("access.log");
    std::fs::write(&plain, log(20)).unwrap();
    let line = "gzip -c access.log > access.log.gz && palisade replay --json access.log.gz && palisade replay --json - < access.log";
    let said = shell(folder.path(), line);
    let all: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(all.len(), 2);
    assert_eq!(all[0], all[1]);
    assert_eq!(all[0]["summary"]["events"], 20);

    let envoy = r#"{"start_time":"2026-10-10T11:55:36.123Z","method":"GET","path":"/a","downstream_remote_address":"192.0.2.9:47"}"#;
    let nginx = "192.0.2.9|2026-10-10T11:55:36+00:00|GET /a HTTP/1.1";
    let audit = r#"{"event":"rate_limit_exceeded","severity":"warning","at":"2026-01-01T00:00:00.000Z","ip_prefix":"192.0.2.0/24","class":"read"}"#;
    let common = r#"192.0.2.9 - - [10/Oct/2026:13:55:36 +0000] "GET /a HTTP/1.1" 200 1"#;
    for (format, text) in [
        ("auto", envoy),
        ("envoy", envoy),
        ("auto", audit),
        ("common", common),
        ("$remote_addr|$time_iso8601|$request", nginx),
    ] {
        std::fs::write(&plain, format!("{text}\n\nnot a line 192.0.2.77\n")).unwrap();
        let said = shell(
            folder.path(),
            &format!("palisade replay access.log --format '{format}'"),
        );
        assert!(
            said.starts_with("1 events: allow 1\n1 lines could not be used\n  line 3: "),
            "{format}: {said}"
        );
        assert!(!said.contains("192.0.2"), "{said}");
    }
}

#[test]
fn replay_honours_the_policys_reading_of_escaped_slashes() {
    let folder = tempfile::tempdir().unwrap();
    let event = r#"{"at":"2026-01-01T00:00:00Z","op":"request","ip":"192.0.2.1","method":"GET","path":"/a%2Fb","expect":{"decision":"allow"}}"#;
    std::fs::write(folder.path().join("cases.jsonl"), format!("{event}\n")).unwrap();
    std::fs::write(
        folder.path().join("p.toml"),
        "[identity]\nencoded_slash = \"literal\"\n",
    )
    .unwrap();
    let run = |line: &str| {
        let mut command = palisade();
        command.current_dir(folder.path()).args(line.split(' '));
        command.output().unwrap()
    };
    assert_eq!(run("test cases.jsonl").status.code(), Some(2));
    assert_eq!(run("replay cases.jsonl").status.code(), Some(2));
    assert_eq!(
        run("test cases.jsonl --config p.toml").status.code(),
        Some(0)
    );
    assert_eq!(
        run("replay cases.jsonl --config p.toml").status.code(),
        Some(0)
    );
}

/// Requests and logins of a few callers, some of them too many, one a tenth of a second.
fn recorded(count: u64) -> Vec<String> {
    let mut seed = 5_u64;
    let mut next = move |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % bound
    };
    let mut line = |n: u64| {
        let (host, account, device) = (next(40), next(9), next(5));
        let at = at(n * 100);
        match next(5) {
            0 => format!(
                r#"{{"at":"{at}","op":"login.failure","ip":"198.51.100.{host}","account":"a{account}","device":{{"client_id":"d{device}"}},"request_id":"r{n}"}}"#
            ),
            _ => format!(
                r#"{{"at":"{at}","op":"request","ip":"192.0.2.{host}","method":"GET","path":"/a","org":"o{device}"}}"#
            ),
        }
    };
    (0..count).map(&mut line).collect()
}

/// So many milliseconds into a day.
fn at(ms: u64) -> String {
    format!(
        "2026-01-01T{:02}:{:02}:{:02}.{:03}Z",
        ms / 3_600_000,
        ms / 60_000 % 60,
        ms / 1000 % 60,
        ms % 1000
    )
}

#[tokio::test]
async fn replay_decides_as_the_sequential_engine_does_line_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = policy("9/min", "");
    std::fs::write(folder.path().join("p.toml"), &text).unwrap();
    let lines = recorded(5000);
    std::fs::write(folder.path().join("events.jsonl"), lines.join("\n")).unwrap();
    let out = palisade()
        .current_dir(folder.path())
        .args([
            "replay",
            "events.jsonl",
            "--config",
            "p.toml",
            "--lines",
            "--json",
        ])
        .output()
        .unwrap();
    let said = String::from_utf8(out.stdout).unwrap();
    let mut shown = said
        .lines()
        .map(|line| -> Value { serde_json::from_str(line).unwrap() });

    let bundle = palisade_policy::load_text(
        Path::new("p.toml"),
        &text,
        &palisade_policy::Env::default(),
        &palisade_policy::Overrides::default(),
    );
    let keyring = palisade_core::Keyring::new(&[7; 32], None).unwrap();
    let mut engine = palisade::cases::Replayer::new(bundle.unwrap().policy, keyring);
    let mut refused = 0;
    for (n, line) in lines.iter().enumerate() {
        let event = palisade::cases::parse_event(line).unwrap();
        let decided = engine.decide(&event).await.unwrap().unwrap().decision;
        let one = shown.next().unwrap();
        let rule = decided.rule.map(palisade_core::rule::Rule::id);
        assert_eq!(one["line"], n + 1);
        assert_eq!(
            (one["decision"].as_str(), one["rule"].as_str()),
            (Some(decided.outcome.name()), rule),
            "line {}",
            n + 1
        );
        assert_eq!(
            one["retry_after"].as_u64(),
            decided.retry_after,
            "line {}",
            n + 1
        );
        refused += usize::from(!decided.is_allowed());
    }
    assert!((500..4500).contains(&refused), "{refused}");
    assert_eq!(shown.next().unwrap()["summary"]["events"], lines.len());
}

/// The most memory that a process has had so far, in bytes.
fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = most.unwrap().trim().trim_end_matches(" kB");
    kilobytes.parse::<u64>().unwrap() * 1024
}

#[test]
fn replay_stays_within_its_memory_however_long_the_recording() {
    const LINES: u32 = 150_000;
    const MIB: u64 = 1024 * 1024;
    let mut child = palisade()
        .args(["replay", "--json", "--keys-max", "1000", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let mut input = std::io::BufWriter::new(child.stdin.take().unwrap());
    // Everybody comes once: nothing that is kept of one serves for another.
    let mut write = |from: u32| {
        for n in from..from + LINES {
            let (at, ip) = (at(u64::from(n)), std::net::Ipv4Addr::from(0x0a00_0000 + n));
            writeln!(input, r#"{{"at":"{at}","op":"request","ip":"{ip}","method":"GET","path":"/items/{n}","org":"o{n}"}}"#).unwrap();
        }
        input.flush().unwrap();
        // What is written is read but for what waits in a pipe and eight batches.
        peak(pid)
    };
    let (first, second) = (write(0), write(LINES));
    drop(input);
    let out = child.wait_with_output().unwrap();
    let summary: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(summary["summary"]["events"], 2 * LINES);
    assert!(summary["summary"]["overflowed"].as_u64().unwrap() > 0);
    assert!(first < 128 * MIB, "{} MiB", first / MIB);
    assert!(
        second < first + 8 * MIB,
        "{} MiB, then {} MiB",
        first / MIB,
        second / MIB
    );
}
