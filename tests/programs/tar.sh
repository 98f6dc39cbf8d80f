#!/usr/bin/env bash
# tar: pack a tree with links, sparse files and odd names, unpack it, compare everything.
. "$(dirname "$0")/common.bash"
tree "$scratch/tree" "$(pick 20 200)" "$(pick 40 100)"
cd "$scratch/tree"
ln folder-001/file-0001.txt folder-002/linked
ln -s ../folder-001 folder-003/up
ln -s /nowhere/at/all folder-003/dangling
printf data | dd of=sparse bs=1 seek=5000000 status=none
mkdir -p deep/$(printf 'x%.0s' $(seq 200))/$(printf 'y%.0s' $(seq 255))
touch $'new\nline' ' blank ' '*' $'\xff\xfe' "$(printf 'é%.0s' $(seq 127))"
touch -d '1970-01-01 00:00:00' epoch
touch -d '2100-01-01 00:00:00.123456789' future
chmod 400 epoch
chmod 7755 future
tar --format=posix -cf "$scratch/tree.tar" --sparse .

cd "$dir"
mkdir out
tar -xpf "$scratch/tree.tar" -C out
tar -df "$scratch/tree.tar" -C out
listing() { (cd "$1" && find . ! -type d -printf '%p %y %m %n %s %T@ %l\n' | sort); }
diff <(listing "$scratch/tree") <(listing out)
tar --format=posix -cf again.tar --sparse -C out .
mkdir twice
tar -xpf again.tar -C twice
diff -r --no-dereference out twice
[ "$(du -k out/sparse | cut -f1)" -lt 1000 ] || fail "the sparse file is not sparse"
rm -rf out twice
[ ! -e out ] || fail "rm -rf left something"
