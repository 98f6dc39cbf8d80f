//! What a plug-in's process may do.
//!
//! | kept from it | how |
//! |---|---|
//! | descriptors but the three it is handed, and variables | closed at `exec`; no environment |
//! | outliving the thread that asks it | `PR_SET_PDEATHSIG` |
//! | rights by set-user-id programs | `PR_SET_NO_NEW_PRIVS` |
//! | memory beyond 1 GiB, core files | `setrlimit` |
//! | once loaded: files, sockets, processes, all but some system calls | seccomp |
//!
//! Not kept from it: the processor (a loop is killed for its lateness), what the user may do while
//! the object is loaded, and memory it makes executable. Where the kernel has no seccomp it goes on
//! without.

use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Where the three descriptors are after `exec`: the area, the doorbell, the notifier.
pub(in crate::plugin) const AREA_FD: RawFd = 3;
pub(in crate::plugin) const DOORBELL_FD: RawFd = 4;
pub(in crate::plugin) const NOTIFIER_FD: RawFd = 5;

/// Most memory.
const MEMORY: libc::rlim_t = 1 << 30;

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Has the process that `command` starts see nothing of this one but the three descriptors handed
/// to it, which stay open as long as the caller keeps them.
pub(in crate::plugin) fn confine(command: &mut Command, handed: [RawFd; 3]) {
    // SAFETY: between fork and exec it makes system calls only, and touches no memory but its own
    // copy of three numbers.
    unsafe { command.pre_exec(move || before_exec(handed)) };
}

/// Between fork and exec: system calls only.
fn before_exec(handed: [RawFd; 3]) -> io::Result<()> {
    // Out of the way first: one may lie where another belongs.
    let mut moved = [0; 3];
    for (to, from) in moved.iter_mut().zip(handed) {
        // SAFETY: plain system calls on descriptors of this process, here and below.
        *to = checked(unsafe { libc::fcntl(from, libc::F_DUPFD, 16) })?;
    }
    for (from, to) in moved.into_iter().zip([AREA_FD, DOORBELL_FD, NOTIFIER_FD]) {
        // SAFETY: as above.
        checked(unsafe { libc::dup2(from, to) })?;
    }
    // Closed by exec, not here: what reports a failed exec is one of them.
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: as above.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 6u32, u32::MAX, flags) };
    checked(i32::try_from(closed).unwrap_or(0))?;
    limit(libc::RLIMIT_AS, MEMORY)?;
    limit(libc::RLIMIT_CORE, 0)?;
    // SAFETY: as above.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    // SAFETY: as above.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    Ok(())
}

fn limit(what: libc::__rlimit_resource_t, most: libc::rlim_t) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: `limit` is valid for the call.
    checked(unsafe { libc::setrlimit(what, &raw const limit) }).map(|_| ())
}

/// What computing, memory and the two events take. `abort` takes a signal, too: see
/// [`once_loaded`].
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_futex,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
];

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xC000_00B7;
/// Of the other way to call an x86-64 kernel; no other has such numbers.
const X32: u32 = 0x4000_0000;

fn step(code: u32, jump: (u8, u8), value: u32) -> libc::sock_filter {
    let code = u16::try_from(code).unwrap_or(0);
    libc::sock_filter { code, jt: jump.0, jf: jump.1, k: value }
}

/// From here on only [`ALLOWED`], and signals to itself; anything else kills the process.
pub(in crate::plugin) fn once_loaded() -> io::Result<()> {
    let load = |at| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), at);
    let equal = |value, jump| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jump, value);
    let end = |what| step(libc::BPF_RET | libc::BPF_K, (0, 0), what);
    // struct seccomp_data: u32 number, u32 architecture, u64 instruction, u64 arguments.
    let mut filter = vec![load(4), equal(ARCH, (1, 0)), end(libc::SECCOMP_RET_KILL_PROCESS)];
    filter.push(load(0));
    filter.push(step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, (0, 1), X32));
    filter.push(end(libc::SECCOMP_RET_KILL_PROCESS));
    for number in ALLOWED {
        filter.push(equal(u32::try_from(*number).unwrap_or(u32::MAX), (0, 1)));
        filter.push(end(libc::SECCOMP_RET_ALLOW));
    }
    // What `abort` does, but to nobody else: the DPU side runs as the same user.
    filter.push(equal(u32::try_from(libc::SYS_tgkill).unwrap_or(u32::MAX), (0, 3)));
    filter.push(load(16));
    filter.push(equal(std::process::id(), (0, 1)));
    filter.push(end(libc::SECCOMP_RET_ALLOW));
    filter.push(end(libc::SECCOMP_RET_KILL_PROCESS));
    let len = u16::try_from(filter.len()).unwrap_or(0);
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the program and its filter are valid for the call; the kernel copies them.
    checked(unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) }).map(|_| ())
}
