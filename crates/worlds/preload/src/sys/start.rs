//! The library's beginning in a process.

use super::{exec, guard, signals, slots, stdio};
use crate::{config, shadow};

/// Run by the loader before the program.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// Run by the loader at the end of the program.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = exec::ending;

extern "C" fn begin() {
    let errno = guard::errno();
    if config::read() {
        config::set_umask(signals::umask());
        config::moved();
        exec::watch_forks();
        shadow::adopt();
        (0..=2).filter(|fd| slots::get(*fd).is_some_and(|it| !it.is_real())).for_each(|fd| {
            stdio::standard(fd, true);
        });
        guard::activate();
    }
    guard::set_errno(errno);
}
