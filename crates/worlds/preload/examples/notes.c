/* Keeps a note on a kv volume, past the kernel:
 *
 *     cc -I include notes.c -L target/release -loutboard_preload -o notes
 *     ./notes data/dpu.sock "remember the milk"
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "outboard.h"

static int failed(const char *doing, int error) {
    fprintf(stderr, "%s: %s\n", doing, strerror(error < 0 ? -error : error));
    return 1;
}

int main(int count, char **words) {
    if (count != 3) {
        fprintf(stderr, "usage: notes SOCKET TEXT\n");
        return 2;
    }
    int error;
    ob_volume *volume = ob_connect(words[1], 5000, &error);
    if (!volume) return failed("connecting", error);

    error = ob_mkdir(volume, "notes", 0755);
    if (error && error != -EEXIST) return failed("mkdir", error);
    ob_file *file = ob_open(volume, "notes/draft", O_RDWR | O_CREAT | O_TRUNC, 0644, &error);
    if (!file) return failed("open", error);

    size_t length = strlen(words[2]);
    ssize_t written = ob_pwrite(file, words[2], length, 0);
    if (written != (ssize_t)length) return failed("pwrite", (int)written);
    if ((error = ob_fsync(file, 0))) return failed("fsync", error);

    char back[4096] = {0};
    ssize_t got = ob_pread(file, back, sizeof back - 1, 0);
    if (got < 0) return failed("pread", (int)got);
    struct stat found;
    if ((error = ob_fstat(file, &found))) return failed("fstat", error);
    if ((error = ob_close(file))) return failed("close", error);
    if ((error = ob_rename(volume, "notes/draft", "notes/kept"))) return failed("rename", error);
    if (ob_stat(volume, "notes/draft", &found) != -ENOENT) return failed("stat", 0);
    if ((error = ob_symlink(volume, "kept", "notes/link"))) {
        if (error != -EEXIST) return failed("symlink", error);
    }
    if ((error = ob_stat(volume, "notes/link", &found))) return failed("stat", error);
    printf("%s (%lld bytes)\n", back, (long long)found.st_size);

    ob_dir *dir = ob_opendir(volume, "notes", &error);
    if (!dir) return failed("opendir", error);
    struct ob_entry entry;
    int more;
    while ((more = ob_readdir(dir, &entry)) > 0) printf("notes/%s\n", entry.name);
    if (more < 0) return failed("readdir", more);
    ob_closedir(dir);
    if ((error = ob_disconnect(volume))) return failed("disconnecting", error);
    return 0;
}
