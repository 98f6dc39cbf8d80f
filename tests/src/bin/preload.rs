//! What the programs of `programs --preload` do not show of `liboutboard_preload.so`: the C
//! interface, a volume that is not mounted, losses of either side under a preloaded program. Names
//! of checks run just these.

#![forbid(unsafe_code)]

use std::env;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use outboard_tests::{Result, Side, Volume, context, run_limited};

const LIMIT: Duration = Duration::from_secs(120);

type Check = fn(&mut Volume, &Path) -> Result<()>;

const CHECKS: &[(&str, Check)] = &[
    ("c-interface", c_interface),
    ("unmounted", unmounted),
    ("dpu-killed", dpu_killed),
    ("host-killed", host_killed),
    ("program-killed", program_killed),
    ("forks", forks),
];

fn main() -> ExitCode {
    let base = env::temp_dir().join(format!("outboard-preload-{}", std::process::id()));
    let only: Vec<String> = env::args().skip(1).collect();
    if let Some(name) = only.iter().find(|only| !CHECKS.iter().any(|(name, _)| name == only)) {
        eprintln!("preload: no check `{name}`");
        return ExitCode::from(2);
    }
    let wanted = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    let mut failed = 0;
    for (name, check) in CHECKS.iter().filter(|(name, _)| wanted(name)) {
        let start = Instant::now();
        let verdict = run(*check, &base.join(name));
        let seconds = start.elapsed().as_secs_f64();
        match verdict {
            Ok(()) => println!("pass  {name:<14} {seconds:>6.1} s"),
            Err(reason) => {
                println!("FAIL  {name:<14} {seconds:>6.1} s  {reason}");
                failed += 1;
            }
        }
    }
    if failed > 0 {
        println!("data and logs are in {}", base.display());
        return ExitCode::FAILURE;
    }
    _ = fs::remove_dir_all(&base);
    ExitCode::SUCCESS
}

fn run(check: Check, base: &Path) -> Result<()> {
    context(fs::create_dir_all(base), || format!("cannot make {}", base.display()))?;
    let mut volume = Volume::new(base, &[])?;
    volume.start()?;
    check(&mut volume, base)?;
    volume.check()?;
    volume.stop()?;
    volume.check()
}

/// A preloaded shell that runs `script`, `$1` being a directory of the volume.
fn shell(volume: &Volume, script: &str, dir: &Path) -> Result<Command> {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script, "check"]).arg(dir);
    volume.preload(&mut command)?;
    Ok(command)
}

/// Runs a command to its end; what it printed.
fn output(command: Command, base: &Path) -> Result<String> {
    let ended = run_limited(command, LIMIT, &base.join("check.log"))?;
    match ended.code() {
        Some(0) => Ok(ended.output),
        code => Err(format!("ended with {code:?}:\n{}", ended.tail(10))),
    }
}

fn sources() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or_else(|| Path::new("."));
    root.join("crates/worlds/preload")
}

/// A program that forks and changes flags of a file without a name, `$1` being a directory of the
/// volume and `$2` one elsewhere.
const FORKS: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>
#define CHECK(it) if (!(it)) { perror(#it); fflush(stderr); _exit(1); }
static char ours[4096], other[4096];
static int kept, elsewhere;
static volatile int done;
static void tick(int signal) { char byte; (void)signal; (void)!pread(kept, &byte, 1, 0); }
static void *busy(void *none) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, 0);
    while (!done) {
        int fd = open(ours, O_RDWR);
        CHECK(fd >= 0);
        close(fd);
        struct stat found;
        int fds[4];
        for (int n = 0; n < 4; n++) CHECK((fds[n] = open(other, O_RDWR)) >= 0);
        for (int n = 0; n < 4; n++) {
            for (int look = 0; look < 20; look++) {
                CHECK(fstat(fds[n], &found) == 0);
                CHECK((int)found.st_dev == elsewhere);
            }
            close(fds[n]);
        }
    }
    return none;
}
int main(int count, char **given) {
    CHECK(count == 3);
    struct stat found;
    snprintf(ours, sizeof ours, "%s/ours", given[1]);
    snprintf(other, sizeof other, "%s/other", given[2]);
    CHECK((kept = open(ours, O_RDWR | O_CREAT | O_APPEND, 0600)) >= 0);
    CHECK(unlink(ours) == 0 && write(kept, "kept", 4) == 4);
    CHECK(fcntl(kept, F_SETFL, 0) == 0);
    CHECK(pwrite(kept, "K", 1, 0) == 1 && fstat(kept, &found) == 0 && found.st_size == 4);
    int fd = open(other, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && fstat(fd, &found) == 0);
    elsewhere = (int)found.st_dev;
    close(fd);
    close(open(ours, O_RDWR | O_CREAT, 0600));
    signal(SIGALRM, tick);
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, busy, 0) == 0);
    for (int n = 1; n <= 100; n++) {
        struct itimerval once = { { 0, 0 }, { 0, 20 * n } };
        setitimer(ITIMER_REAL, &once, 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) _exit(0);
        while (waitpid(child, 0, 0) < 0) {}
    }
    signal(SIGALRM, SIG_IGN);
    done = 1;
    pthread_join(thread, 0);
    puts("well");
    return 0;
}
"#;

/// Forks beside signal handlers that read, and beside a thread that opens and closes: nobody waits
/// for ever, and no descriptor of another file is taken for the volume's. Before, a handler that
/// ran during a fork waited for locks that its own thread held. `F_SETFL` closed a file before it
/// opened it again: one without a name was gone.
fn forks(volume: &mut Volume, base: &Path) -> Result<()> {
    let (source, program) = (base.join("forks.c"), base.join("forks-program"));
    context(fs::write(&source, FORKS), || "the source".to_owned())?;
    let mut compile = Command::new("cc");
    compile.args(["-Wall", "-Werror", "-pthread", "-o"]).arg(&program).arg(&source);
    output(compile, base)?;
    let mut run = Command::new(&program);
    run.arg(volume.mountpoint()).arg(base);
    volume.preload(&mut run)?;
    let said = output(run, base)?;
    if said == "well\n" { Ok(()) } else { Err(format!("it says {said:?}")) }
}

/// The example is compiled against the header and run; the mount sees what it did.
fn c_interface(volume: &mut Volume, base: &Path) -> Result<()> {
    let library = outboard_tests::program()?;
    let library = library.parent().unwrap_or_else(|| Path::new("."));
    let program = base.join("notes");
    let mut compile = Command::new("cc");
    compile.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    compile.arg("-I").arg(sources().join("include")).arg(sources().join("examples/notes.c"));
    compile.arg("-L").arg(library).arg("-loutboard_preload");
    output(compile, base)?;
    let mut notes = Command::new(&program);
    notes.arg(volume.socket()).arg("remember").env("LD_LIBRARY_PATH", library);
    let said = output(notes, base)?;
    // A listing begins with the newest name.
    if said != "remember (8 bytes)\nnotes/link\nnotes/kept\n" {
        return Err(format!("the example says {said:?}"));
    }
    let kept = volume.mountpoint().join("notes/kept");
    let kept = context(fs::read(&kept), || "through the mount".to_owned())?;
    if kept == b"remember" { Ok(()) } else { Err(format!("the mount has {kept:?}")) }
}

/// Below a prefix where nothing is mounted, all is served from the queues, and what cannot be is
/// refused in words.
fn unmounted(volume: &mut Volume, base: &Path) -> Result<()> {
    let prefix = Path::new("/outboard-unmounted");
    let script = r#"
        seq 1000 > "$1/numbers"
        echo more >> "$1/numbers"
        cp "$1/numbers" "$1/copy"; mv "$1/copy" "$1/moved"; ln -s moved "$1/link"
        cmp "$1/numbers" "$1/link"
        mkdir "$1/d"; cp -r "$1/numbers" "$1/d/"; ls -R "$1" | wc -l
        { echo one; ls -d /etc; echo two; } > "$1/mixed"; cat < "$1/mixed"
        sort -n "$1/numbers" | tail -1; grep -c 9 "$1/numbers"; sed -i s/9/X/ "$1/numbers"
        grep -c X "$1/numbers"
        rm -r "$1/d"; ls "$1"
        cd "$1" || echo refused
    "#;
    let mut command = shell(volume, script, prefix)?;
    command.env("OUTBOARD_PREFIX", prefix);
    let said = output(command, base)?;
    for expected in ["one\n/etc\ntwo\n1000\n271\n271\n", "where it is mounted", "refused"] {
        if !said.contains(expected) {
            return Err(format!("no {expected:?} in what it says:\n{said}"));
        }
    }
    Ok(())
}

/// Numbers in order, each written and read back by a process that lives through it all.
const WRITER: &str = r#"
    for n in $(seq 150); do
        echo "$n" >> "$1/log"
        [ "$(tail -1 "$1/log")" = "$n" ]
    done
    touch "$1/done"
"#;

fn begin(volume: &Volume, base: &Path, script: &str) -> Result<Child> {
    let mut command = shell(volume, script, &volume.mountpoint())?;
    let log = context(fs::File::create(base.join("writer.log")), || "a log".to_owned())?;
    let errors = context(log.try_clone(), || "a log".to_owned())?;
    command.stdin(Stdio::null()).stdout(log).stderr(errors);
    context(command.spawn(), || "cannot start the writer".to_owned())
}

fn whole(volume: &Volume, base: &Path) -> Result<()> {
    let log = fs::read_to_string(volume.mountpoint().join("log"));
    let log = context(log, || "the log".to_owned())?;
    let expected: String = (1..=150).map(|n| format!("{n}\n")).collect();
    if log == expected {
        return Ok(());
    }
    let said = fs::read_to_string(base.join("writer.log")).unwrap_or_default();
    Err(format!("{} bytes of {} were kept\n{said}", log.len(), expected.len()))
}

/// kill -9 of the DPU side: preloaded programs wait for the next one, and lose and repeat nothing.
fn dpu_killed(volume: &mut Volume, base: &Path) -> Result<()> {
    let mut writer = begin(volume, base, WRITER)?;
    for _ in 0..3 {
        sleep(Duration::from_millis(300));
        if volume.mountpoint().join("done").exists() {
            break;
        }
        volume.kill(&[Side::Dpu])?;
        sleep(Duration::from_millis(300));
    }
    let status = context(writer.wait(), || "the writer".to_owned())?;
    if !status.success() {
        let said = fs::read_to_string(base.join("writer.log")).unwrap_or_default();
        return Err(format!("the writer ended with {status}:\n{said}"));
    }
    whole(volume, base)
}

/// kill -9 of the process that mounts: preloaded programs have their own attachments and go on.
fn host_killed(volume: &mut Volume, base: &Path) -> Result<()> {
    let script = r#"for n in $(seq 150); do echo "$n"; sleep 0.002; done |
        dd of="$1/log" bs=64 iflag=fullblock status=none"#;
    let mut writer = begin(volume, base, script)?;
    sleep(Duration::from_millis(200));
    volume.kill(&[Side::Host])?;
    volume.start()?;
    let status = context(writer.wait(), || "the writer".to_owned())?;
    if !status.success() {
        let said = fs::read_to_string(base.join("writer.log")).unwrap_or_default();
        return Err(format!("the writer ended with {status}:\n{said}"));
    }
    whole(volume, base)
}

/// A preloaded program that is killed leaves no attachment, no open file and no lock.
fn program_killed(volume: &mut Volume, base: &Path) -> Result<()> {
    let attachments = |volume: &Volume| -> Result<usize> {
        let status = volume.status()?;
        let found = status["dpu"]["attachments"].as_array().map(Vec::len);
        found.ok_or_else(|| format!("no attachments in {status}"))
    };
    let before = attachments(volume)?;
    let script = r#"exec 8>"$1/file"; echo x >&8; touch "$1/ready"; rm "$1/file"; kill -STOP $$"#;
    let mut holder = begin(volume, base, script)?;
    let ready = volume.mountpoint().join("ready");
    let started = Instant::now();
    while !ready.exists() && started.elapsed() < LIMIT {
        sleep(Duration::from_millis(20));
    }
    sleep(Duration::from_millis(200));
    if attachments(volume)? <= before {
        return Err("the program never attached".to_owned());
    }
    context(holder.kill(), || "kill -9".to_owned())?;
    let status = context(holder.wait(), || "the holder".to_owned())?;
    if status.signal().is_none() {
        return Err(format!("the holder ended by itself: {status}"));
    }
    let started = Instant::now();
    while attachments(volume)? > before {
        if started.elapsed() > LIMIT {
            return Err("its attachment is still there".to_owned());
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}
