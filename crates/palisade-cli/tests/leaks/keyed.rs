//! Redis clients: decisions on keys, a wrong token, commands that are refused.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::common::PATIENCE;

/// Says everything that holds an identifier; what was answered.
pub(crate) fn everything(resp: SocketAddr, canary: impl Fn(&str) -> String) -> String {
    let (key, bad) = (canary("account"), canary("bad input"));
    let decision = format!("CL.THROTTLE {key} 1 1 3600");
    let lines = [
        format!("AUTH {}", canary("wrong credential")),
        format!("AUTH {}", canary("caller token")),
        decision.clone(),
        decision.clone(),
        decision,
        format!("CL.THROTTLE {key} {bad} 1 3600"),
        format!("RESET {key}"),
        format!("CLIENT SETNAME {}", canary("user")),
        format!("{bad} {key}"),
        "QUIT\r\n".to_owned(),
    ];
    let mut stream = TcpStream::connect(resp).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(lines.join("\r\n").as_bytes()).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("-WRONGPASS"), "{said}");
    assert!(said.contains("*5\r\n:1\r\n:2\r\n:0\r\n"), "{said}");
    assert!(said.ends_with("-ERR unknown command; `COMMAND` lists what there is\r\n+OK\r\n"));
    said
}
