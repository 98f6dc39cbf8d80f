#!/usr/bin/env bash
# coreutils, bash redirections, grep, sed, find and diff: what they print on the volume is what they
# print on a plain directory.
. "$(dirname "$0")/common.bash"

work() {
    local d=$1
    seq 1000 >"$scratch/numbers"
    cp "$scratch/numbers" "$d/a" && md5sum <"$d/a"
    cp -p "$d/a" "$d/b" && mv "$d/b" "$d/c" && ln "$d/c" "$d/hard" && ln -s c "$d/soft"
    wc -l <"$d/soft"
    (cd "$d" && stat -c '%n %s %h %F %a' c soft && readlink soft &&
        readlink -f soft | xargs basename)
    mkdir -p "$d/x/y/z" && touch "$d/x/y/z/f" && cp -r "$d/x" "$d/x2" && (cd "$d" && ls -R)
    head -3 "$d/a" && tail -2 "$d/a" && sort -rn "$d/a" -o "$d/sorted" && head -1 "$d/sorted"
    dd if=/dev/zero of="$d/z" bs=4096 count=10 conv=fsync status=none
    dd if="$d/a" of="$d/z" bs=7 seek=3 conv=notrunc status=none && md5sum <"$d/z"
    tee "$d/t1" "$d/t2" <"$d/a" | md5sum && cmp "$d/t1" "$d/t2"
    truncate -s 100 "$d/t1" && stat -c %s "$d/t1"
    echo hello >"$d/r" && echo more >>"$d/r" && cat <"$d/r" "$d/r"
    { echo one && ls -d /etc && echo two; } >"$d/r2" && cat "$d/r2"
    (echo sub && cat "$d/r") >"$d/r3" 2>&1 && cat "$d/r3"
    while read -r line; do echo "got $line"; done <"$d/r2"
    exec 7>"$d/r4" && echo x >&7 && ls -d /etc >&7 && echo y >&7 && exec 7>&- && cat "$d/r4"
    printf 'a\nb\n' | tee -a "$d/r" | wc -l && cat "$d/r"
    cat >"$d/here" <<<"here $((1 + 1))" && cat "$d/here"
    rm "$d/hard" "$d/soft" && rm -r "$d/x" "$d/x2" && rm -rf "$d/nothing"
    ! rmdir "$d/a" 2>/dev/null && ! ls "$d/nothing" 2>/dev/null
    chmod 640 "$d/a" && stat -c %a "$d/a" && touch -d '2001-02-03 04:05:06.789' "$d/a"
    stat -c %y "$d/a" && (cd "$d" && find . -type f | sort) && du -b "$d/a" | cut -f1
    grep -c 9 "$d/a" && sed -i s/9/X/ "$d/a" && grep -c X "$d/a"
    cp --sparse=always "$d/z" "$d/zz" && cmp "$d/z" "$d/zz"
    (cd "$d" && mkdir sub && cd sub && echo q >../q && cat ../q && ls .. | wc -l)
    ! diff "$d/t1" "$d/t2" >/dev/null
    mkdir "$d/un" && tar cf "$d/t.tar" -C "$d" a c t2 && tar xf "$d/t.tar" -C "$d/un"
    ls "$d/un" && cmp "$d/un/c" "$d/c"
}

mkdir "$scratch/plain" "$dir/volume"
work "$scratch/plain" >"$scratch/expected" ||
    fail "on the plain directory: $(tail -3 "$scratch/expected")"
work "$dir/volume" >"$scratch/found" || fail "after: $(tail -3 "$scratch/found")"
diff "$scratch/expected" "$scratch/found" || fail "they print something else"
