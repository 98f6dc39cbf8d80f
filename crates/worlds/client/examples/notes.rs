//! Keeps a note on a kv volume, past the kernel: `notes SOCKET TEXT`.

use std::process::ExitCode;
use std::time::Duration;

use outboard_attach::host::Connect;
use outboard_client::{Errno, OpenOptions, Volume};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    let [_, socket, text] = words.as_slice() else {
        eprintln!("usage: notes SOCKET TEXT");
        return ExitCode::from(2);
    };
    match keep(socket, text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("notes: {error}");
            ExitCode::FAILURE
        }
    }
}

fn keep(socket: &str, text: &str) -> Result<(), Box<dyn std::error::Error>> {
    let volume = Volume::attach(|front| Connect::new(socket).attach(front))?;
    match volume.mkdir("notes", 0o755) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let how = OpenOptions::new().read().write().create(0o644).truncate();
    let file = volume.open("notes/draft", how)?;
    file.write_at(text.as_bytes(), 0)?;
    file.sync(false)?;
    drop(file);
    volume.rename("notes/draft", "notes/kept")?;
    println!("{} bytes kept", volume.stat("notes/kept")?.size);
    for entry in volume.open_dir("notes")?.read(0)? {
        println!("notes/{}", String::from_utf8_lossy(&entry.name));
    }
    volume.backend().detach(Duration::from_secs(5))?;
    Ok(())
}
