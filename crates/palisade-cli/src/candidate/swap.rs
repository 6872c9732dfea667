//! Two files that change places. First the service's own tables that the candidate's file lacks are
//! added to it, then both names are exchanged in one step of the file system. If this is
//! interrupted, each name still has a whole file that is valid in its place.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use palisade_server::failure::Failure;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use toml::Table;

use super::promote::read;

/// Returns the candidate's text with the tables of the service that only the live file has.
pub(super) fn completed(live: &Path, candidate: &Path) -> Result<String, Failure> {
    let text = read(candidate)?;
    let (before, after) = (parse(live, &read(live)?)?, parse(candidate, &text)?);
    let own: Vec<&str> = palisade_policy::schemas()
        .map(|schema| schema.path.split('.').next().unwrap_or(schema.path))
        .filter(|name| *name != "candidate")
        .collect();
    let of_service = |table: &Table| -> Table {
        let kept = table
            .iter()
            .filter(|(name, _)| !own.contains(&name.as_str()));
        kept.map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    };
    let (before, after) = (of_service(&before), of_service(&after));
    let changed: Vec<String> = after
        .iter()
        .filter(|(name, value)| before.get(*name) != Some(*value))
        .map(|(name, _)| format!("`[{name}]`"))
        .collect();
    if !changed.is_empty() {
        return Err(Failure::usage(
            format!(
                "`{}` would also change {} of the service",
                candidate.display(),
                changed.join(", ")
            ),
            "make these tables equal in both files, or leave them out of the candidate's",
        ));
    }
    let lacking: Table = before
        .into_iter()
        .filter(|(name, _)| !after.contains_key(name))
        .collect();
    Ok(with_tables(text, &lacking))
}

fn parse(path: &Path, text: &str) -> Result<Table, Failure> {
    text.parse().map_err(|_| {
        let file = path.display();
        Failure::usage(format!("`{file}` is not TOML"), "see `palisade check`")
    })
}

fn with_tables(mut text: String, tables: &Table) -> String {
    if tables.is_empty() {
        return text;
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str("\n# The service's own settings, added when this policy was promoted.\n");
    text.push_str(&tables.to_string());
    text
}

/// Writes `text` to the candidate's file and exchanges the two names.
pub(super) fn exchange(live: &Path, candidate: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::unavailable(
            format!("the files cannot be swapped: {error}"),
            "both must be on one file system, in folders that this user may write",
        )
    };
    if fs::read_to_string(candidate).ok().as_deref() != Some(text) {
        replace(candidate, text).map_err(failed)?;
    }
    // Not two renames: between them the server could find no live file.
    let exchanged = renameat_with(CWD, live, CWD, candidate, RenameFlags::EXCHANGE);
    exchanged.map_err(|error| failed(error.into()))?;
    for file in [live, candidate] {
        sync_folder(file).map_err(failed)?;
    }
    Ok(())
}

/// Writes a new file next to the old one, and renames it over the old one when it is whole.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let permissions = fs::metadata(path)?.permissions();
    let whole = path.with_extension(format!("promote-{}", std::process::id()));
    let mut file = File::create_new(&whole)?;
    let written = file
        .set_permissions(permissions)
        .and_then(|()| file.write_all(text.as_bytes()))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&whole, path));
    if written.is_err() {
        let _ = fs::remove_file(&whole);
    }
    written
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVE: &str = "[server]\nlisten = \"127.0.0.1:0\"\n\n[candidate]\nfile = \"next.toml\"\n\n[bots]\npatterns = [\"old\"]\n";

    fn files(next: &str) -> (tempfile::TempDir, std::path::PathBuf, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let live = folder.path().join("policy.toml");
        let candidate = folder.path().join("next.toml");
        fs::write(&live, LIVE).unwrap();
        fs::write(&candidate, next).unwrap();
        (folder, live, candidate)
    }

    #[test]
    fn what_the_candidate_lacks_of_the_service_is_added_and_the_files_change_places() {
        let (_folder, live, candidate) = files("[bots]\npatterns = [\"new\"]\n");
        let text = completed(&live, &candidate).unwrap();
        exchange(&live, &candidate, &text).unwrap();
        assert_eq!(fs::read_to_string(&candidate).unwrap(), LIVE);
        let table = parse(&live, &fs::read_to_string(&live).unwrap()).unwrap();
        assert_eq!(table["server"]["listen"].as_str(), Some("127.0.0.1:0"));
        assert_eq!(table["candidate"]["file"].as_str(), Some("next.toml"));
        assert_eq!(table["bots"]["patterns"][0].as_str(), Some("new"));
        // And back.
        let text = completed(&live, &candidate).unwrap();
        exchange(&live, &candidate, &text).unwrap();
        assert_eq!(fs::read_to_string(&live).unwrap(), LIVE);
    }

    #[test]
    fn a_candidate_that_would_change_the_service_is_refused_and_nothing_is_touched() {
        let next = "[server]\nlisten = \"127.0.0.1:1\"\n";
        let (_folder, live, candidate) = files(next);
        let refused = completed(&live, &candidate).unwrap_err().to_string();
        assert!(
            refused.contains("would also change `[server]`"),
            "{refused}"
        );
        assert_eq!(fs::read_to_string(&candidate).unwrap(), next);
    }
}
