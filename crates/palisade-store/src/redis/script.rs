//! The scripts, and calls of them. A call names its script by digest, which a server learns when
//! it is connected to; a server that has forgotten it (after a flush) gets the source.

use std::sync::LazyLock;

use redis::{Cmd, Pipeline, Script as Source};

/// A script and its digest.
pub(super) struct Script {
    source: &'static str,
    sha: LazyLock<String>,
}

macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(super) static $name: Script = Script {
            source: include_str!(concat!("scripts/", $file)),
            sha: LazyLock::new(|| {
                let source = include_str!(concat!("scripts/", $file));
                Source::new(source).get_hash().to_owned()
            }),
        };
    };
}

script!(CHARGE, "charge.lua");
script!(RESET, "reset.lua");
script!(PULL_TO_NOW, "pull_to_now.lua");
script!(LOAD, "load.lua");
script!(COMMIT, "commit.lua");
script!(SET_ASIDE, "set_aside.lua");
script!(REGISTRY_PUT, "registry_put.lua");
script!(REGISTRY_REMOVE, "registry_remove.lua");
script!(REGISTRY_ENTRIES, "registry_entries.lua");
script!(PROBE, "probe.lua");

/// All scripts.
const ALL: [&Script; 10] = [
    &CHARGE,
    &RESET,
    &PULL_TO_NOW,
    &LOAD,
    &COMMIT,
    &SET_ASIDE,
    &REGISTRY_PUT,
    &REGISTRY_REMOVE,
    &REGISTRY_ENTRIES,
    &PROBE,
];

/// Loads every script into a server, in one round trip.
pub(super) fn load_all() -> Pipeline {
    let mut pipe = Pipeline::with_capacity(ALL.len());
    for script in ALL {
        pipe.cmd("SCRIPT").arg("LOAD").arg(script.source);
    }
    pipe
}

/// Way in which a call names its script.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// By digest: short, and refused by a server that does not know it.
    Digest,
    /// By source: the server runs it, and remembers it from then on.
    Source,
}

/// One call of a script.
#[derive(Clone)]
pub(super) struct Call {
    script: &'static Script,
    keys: Vec<String>,
    args: Vec<Vec<u8>>,
}

impl Call {
    pub(super) fn new(script: &'static Script) -> Self {
        Self {
            script,
            keys: Vec::new(),
            args: Vec::new(),
        }
    }

    pub(super) fn key(mut self, key: String) -> Self {
        self.keys.push(key);
        self
    }

    pub(super) fn arg(mut self, arg: impl Into<Vec<u8>>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub(super) fn keys(mut self, keys: Vec<String>) -> Self {
        self.keys = keys;
        self
    }

    pub(super) fn args(mut self, args: Vec<Vec<u8>>) -> Self {
        self.args = args;
        self
    }

    /// The key that decides the slot; empty for a call without keys.
    pub(super) fn slot_key(&self) -> &str {
        self.keys.first().map_or("", String::as_str)
    }

    pub(super) fn command(&self, by: By) -> Cmd {
        let mut cmd = match by {
            By::Digest => redis::cmd("EVALSHA"),
            By::Source => redis::cmd("EVAL"),
        };
        match by {
            By::Digest => cmd.arg(self.script.sha.as_str()),
            By::Source => cmd.arg(self.script.source),
        };
        cmd.arg(self.keys.len());
        for key in &self.keys {
            cmd.arg(key);
        }
        for arg in &self.args {
            cmd.arg(arg.as_slice());
        }
        cmd
    }
}
