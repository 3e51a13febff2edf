use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::time::Duration;

use portcullis_api::Object;
use tempfile::TempDir;
use tokio::time::timeout;

use super::*;

fn service(name: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{ports: [{{port: {port}}}]}}\n"
    )
}

fn describe(update: &Update) -> Vec<String> {
    let line = |change: &Change| match change {
        Change::Set(Object::Service(service)) => {
            let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
            format!(
                "{}:{:?}",
                service.metadata.name.as_deref().unwrap(),
                ports.map(|p| p.port).collect::<Vec<_>>()
            )
        }
        Change::Set(object) => object.key().to_string(),
        Change::Delete(key) => format!("-{}", key.name.name),
    };
    update.changes.iter().map(line).collect()
}

async fn next(source: &mut DirSource) -> Update {
    timeout(Duration::from_secs(60), source.next()).await.expect("an update within a minute")
}

async fn loaded(files: &[(&str, String)]) -> (TempDir, DirSource) {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
        fs::write(dir.path().join(name), text).unwrap();
    }
    let mut source = DirSource::new(dir.path(), MAX_FILE_SIZE);
    next(&mut source).await;
    (dir, source)
}

fn problem_texts(dir: &TempDir, update: &Update) -> Vec<String> {
    let prefix = format!("{}/", dir.path().display());
    update.problems.iter().flatten().map(|problem| problem.to_string().replace(&prefix, "")).collect()
}

#[tokio::test]
async fn edits_yield_exactly_what_they_change() {
    let (dir, mut source) =
        loaded(&[("a.yaml", format!("{}---\n{}", service("s", 1), service("t", 1)))]).await;
    fs::write(dir.path().join("a.yaml"), format!("{}---\n{}", service("s", 1), service("t", 2))).unwrap();
    assert_eq!(describe(&next(&mut source).await), ["t:[2]"]);
    fs::write(dir.path().join("b.yaml"), service("u", 1)).unwrap();
    assert_eq!(describe(&next(&mut source).await), ["u:[1]"]);
    fs::remove_file(dir.path().join("b.yaml")).unwrap();
    assert_eq!(describe(&next(&mut source).await), ["-u"]);
}

#[tokio::test]
async fn an_editors_rename_dance_deletes_nothing() {
    let (dir, mut source) = loaded(&[("a.yaml", service("s", 1))]).await;
    let path = dir.path().join("a.yaml");
    fs::rename(&path, dir.path().join("a.yaml~")).unwrap();
    fs::write(&path, service("s", 2)).unwrap();
    assert_eq!(describe(&next(&mut source).await), ["s:[2]"]);
    fs::write(dir.path().join(".a.new"), service("s", 3)).unwrap();
    fs::rename(dir.path().join(".a.new"), &path).unwrap();
    assert_eq!(describe(&next(&mut source).await), ["s:[3]"]);
}

#[tokio::test]
async fn a_truncated_file_rests_before_it_counts_as_empty() {
    let (dir, mut source) = loaded(&[("a.yaml", service("s", 1))]).await;
    let path = dir.path().join("a.yaml");
    drop(fs::File::create(&path).unwrap());
    fs::write(&path, service("s", 2)).unwrap();
    assert_eq!(describe(&next(&mut source).await), ["s:[2]"]);
    drop(fs::File::create(&path).unwrap());
    assert_eq!(describe(&next(&mut source).await), ["-s"]);
}

/// `(sleep 1; cat new.yaml) > a.yaml`: emptied at once, written in steps, closed at the end. Other
/// changes meanwhile are not held up, and comparing with the disk does not read it either.
#[tokio::test]
async fn a_file_keeps_its_objects_until_its_writer_closes_it() {
    let (dir, mut source) = loaded(&[("a.yaml", service("s", 1))]).await;
    let mut writer = fs::File::create(dir.path().join("a.yaml")).unwrap();
    for (port, half) in [(1, "apiVersion: v1\nkind: Service\n"), (2, "metadata: {name: s}\n")] {
        // The rest of a file that is gone is longer than that of one that was emptied before.
        fs::write(dir.path().join("b.yaml"), service("t", port)).unwrap();
        assert_eq!(describe(&next(&mut source).await), [format!("t:[{port}]")]);
        fs::remove_file(dir.path().join("b.yaml")).unwrap();
        assert_eq!(describe(&next(&mut source).await), ["-t"]);
        source.reread().now();
        writer.write_all(half.as_bytes()).unwrap();
    }
    writer.write_all(b"spec: {ports: [{port: 2}]}\n").unwrap();
    drop(writer);
    assert_eq!(describe(&next(&mut source).await), ["s:[2]"]);
}

#[tokio::test]
async fn directories_come_and_go() {
    let (dir, mut source) = loaded(&[]).await;
    fs::create_dir_all(dir.path().join("team/web")).unwrap();
    fs::write(dir.path().join("team/web/a.yaml"), service("s", 1)).unwrap();
    assert_eq!(describe(&next(&mut source).await), ["s:[1]"]);
    fs::write(dir.path().join("team/web/a.yaml"), service("s", 2)).unwrap();
    assert_eq!(describe(&next(&mut source).await), ["s:[2]"]);
    fs::rename(dir.path().join("team"), dir.path().join(".team")).unwrap();
    assert_eq!(describe(&next(&mut source).await), ["-s"]);
}

#[tokio::test]
async fn a_config_map_volume_is_swapped_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let version = |name: &str, port| {
        fs::create_dir(dir.path().join(name)).unwrap();
        for file in ["a", "b"] {
            fs::write(dir.path().join(name).join(format!("{file}.yaml")), service(file, port)).unwrap();
        }
        symlink(name, dir.path().join("..data_tmp")).unwrap();
        fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
    };
    version("..1", 1);
    for file in ["a.yaml", "b.yaml"] {
        symlink(format!("..data/{file}"), dir.path().join(file)).unwrap();
    }
    let mut source = DirSource::new(dir.path(), MAX_FILE_SIZE);
    assert_eq!(describe(&next(&mut source).await), ["a:[1]", "b:[1]"]);
    version("..2", 2);
    assert_eq!(describe(&next(&mut source).await), ["a:[2]", "b:[2]"]);
}

#[tokio::test]
async fn broken_input_is_reported_and_its_last_good_version_kept() {
    let (dir, mut source) = loaded(&[("a.yaml", service("s", 1)), ("b.yaml", service("t", 1))]).await;
    fs::write(dir.path().join("a.yaml"), service("s", 2).replace("[{port", "[{port: x, targetPort")).unwrap();
    let update = next(&mut source).await;
    assert_eq!(describe(&update), [""; 0]);
    let [problem] = problem_texts(&dir, &update).try_into().unwrap();
    assert!(problem.starts_with("a.yaml:1: Service default/s: "), "{problem}");
    assert!(problem.ends_with("; its last good version stays in force"), "{problem}");

    let big = fs::File::create(dir.path().join("b.yaml")).unwrap();
    big.set_len(20 << 20).unwrap();
    drop(big);
    let update = next(&mut source).await;
    assert_eq!(describe(&update), [""; 0]);
    let big = "b.yaml: is 20 MiB big, the limit is 10 MiB: split it, or raise --max-file-size; its last good objects (1) stay in force";
    assert_eq!(problem_texts(&dir, &update)[1], big);

    fs::write(dir.path().join("a.yaml"), service("s", 3)).unwrap();
    let update = next(&mut source).await;
    assert_eq!(
        (describe(&update), problem_texts(&dir, &update)),
        (vec!["s:[3]".to_owned()], vec![big.to_owned()])
    );
}

#[tokio::test]
async fn of_two_files_that_define_an_object_the_first_by_name_wins() {
    let (dir, mut source) = loaded(&[("b.yaml", service("s", 2))]).await;
    fs::write(dir.path().join("a.yaml"), service("s", 1)).unwrap();
    let update = next(&mut source).await;
    assert_eq!(describe(&update), ["s:[1]"]);
    assert_eq!(
        problem_texts(&dir, &update),
        [
            "b.yaml:1: Service default/s: is defined in a.yaml:1, which comes first; this definition is ignored"
        ]
    );
    fs::remove_file(dir.path().join("a.yaml")).unwrap();
    let update = next(&mut source).await;
    assert_eq!((describe(&update), update.problems), (vec!["s:[2]".to_owned()], Some(vec![])));
}

#[tokio::test]
async fn reread_reads_what_events_do_not_tell() {
    let (dir, mut source) = loaded(&[("a.yaml", service("s", 1))]).await;
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("x"), service("x", 1)).unwrap();
    symlink(elsewhere.path().join("x"), dir.path().join("x.yaml")).unwrap();
    assert_eq!(describe(&next(&mut source).await), ["x:[1]"]);
    fs::write(elsewhere.path().join("x"), service("x", 2)).unwrap();
    source.reread().now();
    assert_eq!(describe(&next(&mut source).await), ["x:[2]"]);
}

#[tokio::test]
async fn a_link_whose_target_is_gone_takes_nothing_away() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(elsewhere.path().join("team")).unwrap();
    fs::write(elsewhere.path().join("x"), service("x", 1)).unwrap();
    fs::write(elsewhere.path().join("team/w.yaml"), service("w", 1)).unwrap();
    symlink(elsewhere.path().join("x"), dir.path().join("x.yaml")).unwrap();
    symlink(elsewhere.path().join("team"), dir.path().join("team")).unwrap();
    let mut source = DirSource::new(dir.path(), MAX_FILE_SIZE);
    assert_eq!(describe(&next(&mut source).await), ["w:[1]", "x:[1]"]);
    fs::rename(elsewhere.path().join("team"), elsewhere.path().join("away")).unwrap();
    fs::remove_file(elsewhere.path().join("x")).unwrap();
    source.reread().now();
    let kept = |name| {
        format!(
            "{name}: is a link to nothing: remove it, or put there what it leads to; its last good objects (1) \
             stay in force"
        )
    };
    // A file could be on its way: it is looked at twice.
    for expected in [vec![kept("team")], vec![kept("team"), kept("x.yaml")]] {
        let update = next(&mut source).await;
        assert_eq!((describe(&update), problem_texts(&dir, &update)), (Vec::new(), expected));
    }
    fs::write(elsewhere.path().join("x"), service("x", 2)).unwrap();
    source.reread().now();
    assert_eq!(describe(&next(&mut source).await), ["x:[2]"]);
}

/// Its name alone makes it no file.
#[test]
fn a_link_to_a_directory_may_be_called_as_a_file_is() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let team = elsewhere.path().join("team");
    fs::create_dir(&team).unwrap();
    fs::write(team.join("s.yaml"), service("s", 1)).unwrap();
    symlink(&team, dir.path().join("team.yaml")).unwrap();
    let mut directory = Directory::new(dir.path().to_owned(), MAX_FILE_SIZE);
    let mut look_at = |paths: &[&str]| {
        let paths = paths.iter().map(|path| dir.path().join(path)).collect();
        directory.refresh(Ready { paths, sweep: true, reread: false })
    };
    assert_eq!(describe(&look_at(&[])), ["s:[1]"]);
    fs::rename(&team, elsewhere.path().join("away")).unwrap();
    let update = look_at(&["team.yaml"]);
    let problem = "team.yaml: is a link to nothing: remove it, or put there what it leads to; its last good objects \
                   (1) stay in force";
    assert_eq!((describe(&update), problem_texts(&dir, &update)), (Vec::new(), vec![problem.to_owned()]));
    let update = look_at(&["team.yaml"]);
    assert_eq!((describe(&update), update.problems), (Vec::new(), None));
    fs::remove_file(dir.path().join("team.yaml")).unwrap();
    assert_eq!(problem_texts(&dir, &look_at(&[])), [""; 0]);
    assert_eq!(describe(&look_at(&[])), ["-s"]);
}

#[tokio::test]
async fn what_is_no_file_is_reported_and_holds_nothing_up() {
    let (dir, mut source) = loaded(&[("a.yaml", service("s", 1)), ("b.yaml", service("t", 1))]).await;
    fs::remove_file(dir.path().join("b.yaml")).unwrap();
    let mode = rustix::fs::Mode::RWXU;
    let pipe = dir.path().join("b.yaml");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let update = next(&mut source).await;
    let expected = "b.yaml: is a named pipe, and only regular files are read: remove it, or replace it by a file; its last good objects (1) stay in force";
    assert_eq!((describe(&update), problem_texts(&dir, &update)), (Vec::new(), vec![expected.to_owned()]));
    fs::write(dir.path().join("a.yaml"), service("s", 2)).unwrap();
    assert_eq!(describe(&next(&mut source).await), ["s:[2]"]);
}

/// Within the time that events take, and sooner than the sweep after ten seconds.
async fn soon(source: &mut DirSource) -> Update {
    timeout(Duration::from_secs(8), source.next()).await.expect("an update by an event")
}

#[tokio::test]
async fn links_to_directories_take_no_watch_away() {
    let (dir, mut source) = loaded(&[("team/a.yaml", service("s", 1))]).await;
    symlink("team", dir.path().join("alias")).unwrap();
    symlink(".", dir.path().join("loop")).unwrap();
    fs::write(dir.path().join("b.yaml"), service("t", 1)).unwrap();
    assert_eq!(describe(&soon(&mut source).await), ["t:[1]"]);
    for port in 2..5 {
        fs::write(dir.path().join("team/a.yaml"), service("s", port)).unwrap();
        let update = soon(&mut source).await;
        assert_eq!((describe(&update), update.problems), (vec![format!("s:[{port}]")], None));
    }
    fs::write(dir.path().join("alias/a.yaml"), service("s", 9)).unwrap();
    assert_eq!(describe(&soon(&mut source).await), ["s:[9]"]);
}

#[tokio::test]
async fn a_link_that_is_turned_elsewhere_is_watched_there() {
    let elsewhere = tempfile::tempdir().unwrap();
    for (name, port) in [("one", 1), ("two", 2)] {
        fs::create_dir(elsewhere.path().join(name)).unwrap();
        fs::write(elsewhere.path().join(name).join("a.yaml"), service("s", port)).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    symlink(elsewhere.path().join("one"), dir.path().join("link")).unwrap();
    let mut source = DirSource::new(dir.path(), MAX_FILE_SIZE);
    assert_eq!(describe(&next(&mut source).await), ["s:[1]"]);
    symlink(elsewhere.path().join("two"), dir.path().join(".new")).unwrap();
    fs::rename(dir.path().join(".new"), dir.path().join("link")).unwrap();
    assert_eq!(describe(&soon(&mut source).await), ["s:[2]"]);
    fs::write(elsewhere.path().join("two/a.yaml"), service("s", 3)).unwrap();
    assert_eq!(describe(&soon(&mut source).await), ["s:[3]"]);
}

#[tokio::test]
async fn directories_that_cannot_be_read_are_problems() {
    let deep = "d/".repeat(16) + "a.yaml";
    let (dir, mut source) = loaded(&[("a.yaml", service("s", 1))]).await;
    fs::create_dir_all(dir.path().join(&deep).parent().unwrap()).unwrap();
    let update = soon(&mut source).await;
    let problem = format!(
        "{}: is over 16 directories deep: move it up, or remove the link that leads here; nothing of it is served",
        &deep[..31]
    );
    assert_eq!(problem_texts(&dir, &update), [problem]);
    fs::remove_dir_all(dir.path().join("d")).unwrap();
    assert_eq!(problem_texts(&dir, &soon(&mut source).await), [""; 0]);
}

/// As to `/`, and to what the kernel makes up: the rest is served at once, and later edits, too.
#[tokio::test]
async fn links_that_lead_all_over_the_system_hold_nothing_up() {
    let (dir, system) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for at in 0..=disk::MAX_LINKED {
        fs::File::create(system.path().join(at.to_string())).unwrap();
    }
    let devices = system.path().join("dev");
    fs::create_dir(&devices).unwrap();
    let (mode, pipe) = (rustix::fs::Mode::RWXU, devices.join("pipe.yaml"));
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for (link, to) in [("a-root", system.path()), ("b-dev", &devices), ("c-fd", "/proc/self/fd".as_ref())] {
        symlink(to, dir.path().join(link)).unwrap();
    }
    fs::write(dir.path().join("d.yaml"), service("s", 1)).unwrap();
    let mut source = DirSource::new(dir.path(), MAX_FILE_SIZE);
    let update = soon(&mut source).await;
    assert_eq!(describe(&update), ["s:[1]"]);
    let problems = problem_texts(&dir, &update);
    for told in [
        "a-root: links to more than 20000 files and directories: ",
        "b-dev/pipe.yaml: is a named pipe, ",
        "c-fd: is on a file system of the kernel (proc): ",
    ] {
        assert!(problems.iter().any(|problem| problem.starts_with(told)), "{told}: {problems:?}");
    }
    fs::write(dir.path().join("d.yaml"), service("s", 2)).unwrap();
    assert_eq!(describe(&soon(&mut source).await), ["s:[2]"]);
}

#[tokio::test]
async fn a_root_that_is_gone_takes_nothing_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("conf");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("a.yaml"), service("s", 1)).unwrap();
    let mut source = DirSource::new(&root, MAX_FILE_SIZE);
    assert_eq!(describe(&next(&mut source).await), ["s:[1]"]);
    fs::rename(&root, dir.path().join("moved")).unwrap();
    let update = soon(&mut source).await;
    let problem = "conf: cannot be read: No such file or directory (os error 2); its last good objects (1) stay in force";
    assert_eq!((describe(&update), problem_texts(&dir, &update)), (Vec::new(), vec![problem.to_owned()]));
}

/// As SIGHUP does, before any sweep, and again when files that are gone have rested.
#[test]
fn reading_everything_again_takes_nothing_from_a_root_that_is_absent() {
    let dir = tempfile::tempdir().unwrap();
    let (release, link) = (dir.path().join("release"), dir.path().join("link"));
    fs::create_dir_all(release.join("team")).unwrap();
    let file = release.join("team/a.yaml");
    fs::write(&file, service("s", 1)).unwrap();
    symlink("release", &link).unwrap();
    for (root, away) in [(&link, dir.path().join("old")), (&release, dir.path().join("away"))] {
        let mut directory = Directory::new(root.clone(), MAX_FILE_SIZE);
        let mut reread = || directory.refresh(Ready { reread: true, ..Ready::default() });
        assert_eq!(describe(&reread()), ["s:[1]"]);
        fs::rename(root, &away).unwrap();
        let absent = reread();
        let [problem] = problem_texts(&dir, &absent).try_into().unwrap();
        assert!(problem.ends_with("(os error 2); its last good objects (1) stay in force"), "{problem}");
        assert_eq!((describe(&absent), describe(&reread())), (Vec::new(), Vec::new()));
        fs::rename(away, root).unwrap();
        assert_eq!(problem_texts(&dir, &reread()), [""; 0]);
        fs::remove_file(root.join("team/a.yaml")).unwrap();
        assert_eq!(describe(&reread()), [""; 0]);
        assert_eq!(describe(&reread()), ["-s"]);
        fs::write(&file, service("s", 1)).unwrap();
    }
}

/// A link leads to another mount here, since mounting is not for everyone.
#[test]
fn what_was_mounted_takes_nothing_with_it() {
    let (dir, mounted) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    let (root, below) = (dir.path().join("conf"), dir.path().join("below"));
    for directory in [root.clone(), below.clone(), mounted.path().join("team")] {
        fs::create_dir_all(directory).unwrap();
    }
    fs::write(root.join("a.yaml"), service("r", 1)).unwrap();
    fs::write(mounted.path().join("s.yaml"), service("s", 1)).unwrap();
    fs::write(mounted.path().join("team/t.yaml"), service("t", 1)).unwrap();
    let lead_to = |to: &Path| {
        symlink(to, dir.path().join("new")).unwrap();
        fs::rename(dir.path().join("new"), root.join("policies")).unwrap();
    };
    lead_to(mounted.path());
    let mut directory = Directory::new(root.clone(), MAX_FILE_SIZE);
    let mut reread = || directory.refresh(Ready { reread: true, ..Ready::default() });
    assert_eq!(describe(&reread()), ["r:[1]", "s:[1]", "t:[1]"]);
    lead_to(&below);
    let update = reread();
    let problem = "conf/policies: is empty, and what was mounted there is gone: mount it again, or put a manifest \
                   there, if only an empty one, to give up what it held; its last good objects (2) stay in force";
    assert_eq!((describe(&update), problem_texts(&dir, &update)), (Vec::new(), vec![problem.to_owned()]));
    for _ in 0..2 {
        let update = reread();
        assert_eq!((describe(&update), update.problems), (Vec::new(), None));
    }

    fs::write(mounted.path().join("s.yaml"), service("s", 2)).unwrap();
    lead_to(mounted.path());
    let update = reread();
    assert_eq!((describe(&update), problem_texts(&dir, &update)), (vec!["s:[2]".to_owned()], Vec::new()));
    lead_to(&below);
    assert_eq!(describe(&reread()), [""; 0]);
    fs::write(below.join("none.yaml"), "").unwrap();
    assert_eq!(
        (describe(&reread()), describe(&reread())),
        (Vec::new(), vec!["-s".to_owned(), "-t".to_owned()])
    );
}
