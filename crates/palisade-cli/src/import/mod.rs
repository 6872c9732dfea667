//! `palisade import`: turns another project's configuration into a policy file.

mod cases;
mod config_map;
mod draft;
mod envoy_ratelimit;
mod fields;
mod kept;
mod limitador;
mod names;
mod nginx;
mod problem;
mod render;
mod yaml;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use clap::{Args, Subcommand};
use palisade_policy::{Env, Overrides, load_text};
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::output;
use serde_json::{Value, json};

use super::offline;
use draft::{Draft, Part};
use problem::Problem;

/// Longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Most files of one import.
const FILES_MAX: usize = 1_000;

/// Turns another project's configuration into a policy file.
///
/// The policy goes to standard output or to `--out`, and keeps the comments of the original.
/// Differences in meaning are noted at each limit, at the end of the file and on standard error.
#[derive(Debug, Args)]
pub(crate) struct Import {
    #[command(subcommand)]
    source: Source,
}

#[derive(Debug, Subcommand)]
enum Source {
    /// The YAML of envoyproxy/ratelimit
    EnvoyRatelimit {
        /// Files, or a folder of them
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Keep fixed windows instead of sliding ones
        #[arg(long)]
        keep_windows: bool,
        #[command(flatten)]
        to: To,
    },
    /// The limits file of limitador
    Limitador {
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Keep fixed windows instead of sliding ones
        #[arg(long)]
        keep_windows: bool,
        /// Keys of the descriptor that Envoy sends, in the same order
        #[arg(long, value_name = "KEYS", value_delimiter = ',')]
        entries: Vec<String>,
        #[command(flatten)]
        to: To,
    },
    /// `limit_req` and `limit_req_zone` of nginx
    Nginx {
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        to: To,
    },
}

/// Destination of the policy and its cases.
#[derive(Debug, Args)]
struct To {
    /// File for the policy; an existing file is never overwritten
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// File for cases that show each limit deny, for `palisade test`
    #[arg(long, value_name = "FILE")]
    cases: Option<PathBuf>,
    /// Leave out settings without a counterpart here, and name them, instead of failing
    #[arg(long)]
    skip_unsupported: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Import {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let (made, to) = match self.source {
            Source::EnvoyRatelimit {
                files,
                keep_windows,
                to,
            } => (
                envoy_ratelimit::import(&read_all(&files)?, keep_windows),
                to,
            ),
            Source::Limitador {
                file,
                keep_windows,
                entries,
                to,
            } => {
                let opened = config_map::opened(read_one(&file)?);
                let [(name, text)] = opened.as_slice() else {
                    return Err(Failure::usage(
                        format!("`{}` holds {} files", file.display(), opened.len()),
                        "put limitador's limits file into a file of its own",
                    ));
                };
                (limitador::import(name, text, &entries, keep_windows), to)
            }
            Source::Nginx { file, to } => (nginx::import(&file, read_one(&file)?, &read_one), to),
        };
        let draft = made.map_err(|problems| problem::refusal(&problems, "correct the file"))?;
        finish(draft, &to)
    }
}

fn finish(mut draft: Draft, to: &To) -> Result<CommandStatus, Failure> {
    if !draft.unsupported.is_empty() && !to.skip_unsupported {
        let hint = "change the original, or leave these out with `--skip-unsupported`";
        return Err(problem::refusal(&draft.unsupported, hint));
    }
    leave_out(&mut draft);
    let policy = render::policy(&draft);
    check(&policy)?;
    let cases = cases::cases(&draft);
    let mut lines = String::new();
    for case in &cases.lines {
        lines.push_str(&format!("{case}\n"));
    }
    if let Some(path) = &to.out {
        write_new(path, &policy)?;
    }
    if let Some(path) = &to.cases {
        write_new(path, &lines)?;
    }
    report(&draft, &policy, &cases, to);
    Ok(CommandStatus::Done)
}

fn leave_out(draft: &mut Draft) {
    for Problem { place, message, .. } in std::mem::take(&mut draft.unsupported) {
        draft.parts.push(Part::LeftOut(Vec::new(), place, message));
    }
}

fn report(draft: &Draft, policy: &str, cases: &cases::Cases, to: &To) {
    let differences = render::differences(draft);
    if to.json {
        let all: Vec<String> = differences
            .into_iter()
            .chain(render::left_out(draft))
            .collect();
        let policy = to.out.is_none().then_some(policy);
        output::json(&json!({
            "limits": draft.limits().count(),
            "differences": all,
            "without_case": cases.not_shown,
            "policy": policy,
            "cases": Value::from(cases.lines.len()),
        }));
        return;
    }
    if to.out.is_none() {
        output::print(policy);
    }
    output::error_line(&format!(
        "{} limits; {} differences from the original stand at the end of the policy: read them",
        draft.limits().count(),
        differences.len()
    ));
    for line in render::left_out(draft) {
        output::error_line(&line);
    }
    if to.cases.is_some() && !cases.not_shown.is_empty() {
        let names = cases.not_shown.join(", ");
        output::error_line(&format!(
            "no case shows: {names}: another limit denies first"
        ));
    }
}

/// Checks that the policy can be served: otherwise the import itself is at fault.
fn check(policy: &str) -> Result<(), Failure> {
    let path = Path::new("the imported policy");
    let read = load_text(path, policy, &Env::default(), &Overrides::default());
    read.map(drop).map_err(|errors| {
        let message = format!("the resulting policy is not valid\n{errors}");
        Failure::usage(message, "change what the lines name in the original")
    })
}

fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    let made = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path);
    let done = made.and_then(|mut file| file.write_all(text.as_bytes()));
    done.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::usage(
            format!("`{}` is there already", path.display()),
            "choose another name, or remove it first",
        ),
        kind => Failure::unavailable(
            format!("cannot write `{}`: {kind}", path.display()),
            "check the folder and its permissions",
        ),
    })
}

/// Reads the files, and those in folders in the order of their names.
fn read_all(paths: &[PathBuf]) -> Result<Vec<(Rc<str>, String)>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            files.extend(yaml_files(path)?);
        } else {
            files.push(path.clone());
        }
    }
    if files.is_empty() || files.len() > FILES_MAX {
        return Err(Failure::usage(
            format!("{} files were found", files.len()),
            format!("name 1 to {FILES_MAX} `.yaml` files, or a folder of them"),
        ));
    }
    let mut opened = Vec::new();
    for file in &files {
        opened.extend(config_map::opened(read_one(file)?));
    }
    Ok(opened)
}

fn yaml_files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unreadable = |error| offline::unreadable(folder, &error);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let is_yaml = path
            .extension()
            .is_some_and(|end| end == "yaml" || end == "yml");
        if is_yaml && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read_one(path: &Path) -> Result<(Rc<str>, String), Failure> {
    let unreadable = |error| offline::unreadable(path, &error);
    let mut text = String::new();
    let file = fs::File::open(path).map_err(unreadable)?;
    let mut bounded = file.take(FILE_BYTES_MAX + 1);
    bounded.read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(Failure::usage(
            format!("`{}` is longer than 4 MiB", path.display()),
            "split it",
        ));
    }
    Ok((Rc::from(path.display().to_string()), text))
}
