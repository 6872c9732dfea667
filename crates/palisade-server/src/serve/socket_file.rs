//! A listening socket that is a file. The file system decides who may connect.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use socket2::{Domain, SockAddr, Socket, Type};

/// Owner and group may connect.
const MODE: u32 = 0o660;

/// A socket file, removed when this is dropped. Drop it before its listener: while a listener
/// exists nobody replaces its file, so that we only ever remove our own.
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode. If somebody removed the file by hand, another process may have created its
    /// own at the same path.
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|meta| identity(&meta) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(meta: &fs::Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// Listens on a new file at `path`. A stale socket, on which no process listens, is replaced.
pub(super) fn bind(path: &Path, backlog: i32) -> io::Result<(UnixListener, SocketFile)> {
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Before the file exists, so that it is never open to more users than in the end. On systems
    // where this has no effect the process's umask applies until the next step.
    let _ = fchmod(&socket, Mode::from_raw_mode(MODE));
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile {
        path: path.to_owned(),
        identity: identity(&fs::symlink_metadata(path)?),
    };
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
    socket.listen(backlog)?;
    Ok((socket.into(), file))
}

/// Removes a socket that nobody listens on. Any other file is left alone: it is not ours.
fn remove_stale(path: &Path) -> io::Result<()> {
    let meta = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        meta => meta?,
    };
    if !meta.file_type().is_socket() {
        return Err(io::Error::new(
            ErrorKind::AlreadyExists,
            "there is a file of that name that is no socket",
        ));
    }
    // Only an attempt to connect shows whether a process listens.
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
        Ok(_) => Err(ErrorKind::AddrInUse.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKLOG: i32 = 8;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_file_for_owner_and_group_that_goes_with_the_listener() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("s");
        let (listener, file) = bind(&path, BACKLOG).unwrap();
        assert_eq!(mode(&path), 0o660);
        UnixStream::connect(&path).unwrap();
        let taken = bind(&path, BACKLOG).map(|_| ()).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        drop(file);
        assert!(!path.exists());
        drop(listener);
    }

    #[test]
    fn a_socket_that_was_left_behind_is_replaced_and_another_file_is_not() {
        let home = tempfile::tempdir().unwrap();
        let (path, other) = (home.path().join("s"), home.path().join("precious"));
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _listening = bind(&path, BACKLOG).unwrap();
        fs::write(&other, "kept").unwrap();
        assert!(bind(&other, BACKLOG).is_err());
        assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
    }

    #[test]
    fn a_file_that_another_process_has_put_there_since_stays() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("s");
        let (_listener, file) = bind(&path, BACKLOG).unwrap();
        fs::remove_file(&path).unwrap();
        let _successor = bind(&path, BACKLOG).unwrap();
        drop(file);
        UnixStream::connect(&path).unwrap();
    }
}
