use std::boxed::Box;
use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::vec::Vec;

use super::*;

type Observer = Box<dyn FnMut(&File) -> io::Result<()>>;

std::thread_local! {
    static OBSERVER: RefCell<Option<Observer>> = const { RefCell::new(None) };
}

pub fn observe_sync(file: &File) -> io::Result<()> {
    OBSERVER.with_borrow_mut(|observer| observer.as_mut().map_or(Ok(()), |observer| observer(file)))
}

/// Of this thread's syncs, from now on.
fn observe(observer: impl FnMut(&File) -> io::Result<()> + 'static) {
    OBSERVER.set(Some(Box::new(observer)));
}

fn old() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "old").unwrap();
    (folder, path)
}

fn names(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn a_commit_syncs_the_file_before_the_rename_and_the_directory_after_it() {
    let (folder, path) = old();
    let mut replacement = Replacement::create(&path, Accepts::Any).unwrap();
    replacement.write_all(b"longer").unwrap();
    replacement.write_at(b"new", 0).unwrap();
    let syncs = Rc::new(RefCell::new(Vec::new()));
    let (seen, name) = (Rc::clone(&syncs), path.clone());
    observe(move |file| {
        let metadata = file.metadata()?;
        seen.borrow_mut().push((metadata.is_file().then_some(metadata.len()), fs::read_to_string(&name)?));
        Ok(())
    });
    replacement.commit().unwrap();
    let mut expected = std::vec![(Some(3), "old".into())];
    if cfg!(unix) {
        expected.push((None, "new".into()));
    }
    assert_eq!((&*syncs.borrow(), names(folder.path())), (&expected, 1));
}

#[test]
fn a_failed_sync_is_an_error_and_keeps_the_old_file() {
    let (folder, path) = old();
    observe(|_| Err(io::ErrorKind::StorageFull.into()));
    assert_eq!(replace(&path, b"new", Accepts::Any).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!((fs::read_to_string(&path).unwrap(), names(folder.path())), ("old".into(), 1));
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn a_failed_sync_of_the_directory_is_an_error() {
        let (_folder, path) = old();
        observe(|file| if file.metadata()?.is_dir() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) });
        assert_eq!(replace(&path, b"new", Accepts::Any).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        observe(|file| if file.metadata()?.is_dir() { Err(io::ErrorKind::InvalidInput.into()) } else { Ok(()) });
        replace(&path, b"newer", Accepts::Any).expect("a file system without this sync");
    }

    #[test]
    fn a_temporary_file_begins_private_where_a_file_is_replaced() {
        let (_folder, path) = old();
        let mode = |is_private| create_temporary(&path, is_private).unwrap().0.metadata().unwrap().mode() & 0o7777;
        assert_eq!((mode(true), mode(false)), (0o600, fs::metadata(&path).unwrap().mode() & 0o7777));
    }

    #[test]
    fn an_own_file_is_neither_a_link_nor_another_user_s() {
        let (folder, path) = old();
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        let refused = |path: &Path, why: &str| {
            let errors = [open(path, Accepts::Own).map(drop), replace(path, b"new", Accepts::Own)];
            for error in errors {
                let error = error.expect_err("it is refused");
                assert!(error.to_string().contains(why), "{error}");
            }
        };
        refused(&link, "symbolic link");
        refused(folder.path(), "not a regular file");
        open(&link, Accepts::Any).unwrap();
        open(&path, Accepts::Own).unwrap();
        // Root alone makes files of other users.
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_ok() {
            refused(&path, "belongs to another user");
            open(&path, Accepts::Any).unwrap();
        }
        assert_eq!((fs::read_to_string(&path).unwrap(), names(folder.path())), ("old".into(), 2));
        let new = folder.path().join("new");
        replace(&new, b"new", Accepts::Own).unwrap();
        replace(&new, b"newer", Accepts::Own).unwrap();
        assert_eq!((fs::read_to_string(&new).unwrap(), fs::metadata(&new).unwrap().mode() & 0o7777), ("newer".into(), 0o600));
    }

    #[test]
    fn links_and_other_files_with_temporary_names_are_kept() {
        let (folder, path) = old();
        let planted = [1, 2].map(|number| folder.path().join(std::format!(".file.{number}-1{SUFFIX}")));
        symlink(&path, &planted[0]).unwrap();
        fs::create_dir(&planted[1]).unwrap();
        remove_abandoned(folder.path());
        assert_eq!(names(folder.path()), 3);
        let abandoned = folder.path().join(std::format!(".file.3-1{SUFFIX}"));
        fs::write(&abandoned, "").unwrap();
        // Root alone makes files of other users.
        if std::os::unix::fs::chown(&abandoned, Some(12_345), None).is_ok() {
            remove_abandoned(folder.path());
            assert!(abandoned.exists());
            std::os::unix::fs::chown(&abandoned, Some(rustix::process::geteuid().as_raw()), None).unwrap();
        }
        remove_abandoned(folder.path());
        assert!(!abandoned.exists());
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use rustix::fs::{XattrFlags, setxattr};

    /// Version 2: tag, permissions and user of each entry.
    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entry = |&(tag, permissions, user): &(u16, u16, u32)| {
            [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &user.to_le_bytes()].concat()
        };
        [2_u32.to_le_bytes().to_vec()].into_iter().chain(entries.iter().map(entry)).collect::<Vec<_>>().concat()
    }

    #[test]
    fn the_mask_of_an_access_control_list_grants_nothing_to_the_group() {
        let (folder, path) = old();
        let none = u32::MAX;
        // The owner and user 12345 may read and write, group and others nothing; the mask is the mode's bits of the group.
        let entries = list(&[(1, 6, none), (2, 6, 12_345), (4, 0, none), (0x10, 6, none), (0x20, 0, none)]);
        let set = |path: &Path, name: &str| setxattr(path, name, &entries, XattrFlags::empty());
        if set(&path, "system.posix_acl_access").is_err() {
            std::eprintln!("skipped: this file system has no access control lists");
            return;
        }
        let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
        assert_eq!(mode(), 0o660);
        replace(&path, b"new", Accepts::Any).unwrap();
        assert_eq!(mode(), 0o600);
        // A list that new files of the directory inherit.
        set(folder.path(), "system.posix_acl_default").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        replace(&path, b"new", Accepts::Any).unwrap();
        let mut found = [0; 64];
        assert_eq!(mode(), 0o640);
        assert_eq!(rustix::fs::getxattr(&path, "system.posix_acl_access", &mut found), Err(rustix::io::Errno::NODATA));
    }
}
