//! docs/failure-modes.md, block by block.

use crate::common::{Options, Server};
use crate::shell::{Shell, blocks};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

const POLICY: &str = "[admin]\ntoken = \"env:PALISADE_ADMIN\"\n[[tenant]]\nid = \"acme\"\n\
                      limits = { org-burst = \"3/min\" }\n";

/// `watch` shows a command's output again and again; here once.
const ONCE: &str = "#!/bin/sh\nfor last; do :; done\nexec sh -c \"$last\"\n";

fn asking(server: &Server) -> Shell {
    let shell = Shell::new();
    shell.put("watch", ONCE);
    let watch = shell.home.path().join("watch");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&watch, mode).unwrap();
    shell.program("watch", &watch);
    shell
        .with("ADMIN", &format!("http://{}", server.admin))
        .with("PALISADE", &format!("http://{}", server.listen))
        .with("TOKEN", TOKEN)
}

#[test]
fn the_commands_for_an_outage_do_what_the_page_says() {
    let server = Server::with(&Options {
        config: Some(POLICY),
        env: &[("PALISADE_ADMIN", TOKEN)],
        ..Options::default()
    });
    let shell = asking(&server);
    let page = blocks("docs/failure-modes.md", "sh");
    let [first, watched, mode, tenant, switch, enabled, limited] = &page[..] else {
        panic!("the page has other blocks");
    };
    let told = shell.run(first);
    for shown in [
        "\"degradation_level\":0",
        "\"policy\":{",
        "\"circuits\":[",
        "rate_limiter_redis_healthy 1",
    ] {
        assert!(told.contains(shown), "{shown}: {told}");
    }
    assert!(shell.run(watched).contains("\"state\":\"up\""));
    assert_eq!(shell.run(mode).trim(), "\"mode\":\"normal\"");
    let told = shell.run(tenant);
    assert!(told.contains("\"invalidated\":"), "{told}");
    assert!(told.contains("\"state\":\"fresh\""), "{told}");
    assert_eq!(shell.run(enabled).trim(), "rate_limiter_enabled 1");
    let told = shell.run(limited);
    assert!(
        told.contains("\"limits\":") && told.contains("\"blocks\":"),
        "{told}"
    );

    // With the switch pulled, on ports of its own.
    let shell = Shell::new();
    shell.put("palisade.toml", "");
    let ready = "until curl -fs -o /dev/null localhost:9090/health/ready; do sleep 0.1; done\n";
    let pulled = format!(
        "{} &\nADMIN=localhost:9090\n{ready}{enabled}",
        switch.trim()
    );
    assert!(shell.run(&pulled).ends_with("rate_limiter_enabled 0\n"));
}
