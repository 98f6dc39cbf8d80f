#!/usr/bin/env bash
# Hard links, renames and open-but-unlinked files, as programs use them.
. "$(dirname "$0")/common.bash"
count=$(pick 200 5000)
echo content >first
for ((i = 1; i < count; i++)); do ln first "link-$i"; done
same "$count" "$(stat -c %h first)" "link count"
same "$count" "$(find . -samefile first | wc -l)" "names of one file"
echo more >>link-7
same "$(cat first)" "$(cat "link-$((count - 1))")" "content through another name"
rm first
same $((count - 1)) "$(stat -c %h link-1)" "link count after an unlink"
# Renaming one name of a file over another name of it does nothing, by POSIX. (mv unlinks.)
mkdir a b
touch a/x
mv a/x b/x
[ ! -e a/x ] && [ -e b/x ] || fail "rename between directories"
mkdir -p deep/er
! mv deep deep/er/inside 2>/dev/null || fail "a directory moved into itself"
mv -T a deep/er/a
same 3 "$(stat -c %h deep/er)" "links of a directory with one child"

exec 5<>held
echo kept >&5
rm held
[ ! -e held ] || fail "the name is still there"
same kept "$(cat /proc/self/fd/5)" "an unlinked file's content"
same 0 "$(stat -L -c %h /proc/self/fd/5)" "an unlinked file's link count"
exec 5>&-

ln -s "$(printf 'p%.0s' $(seq 4000))" long
same 4000 "$(readlink -n long | wc -c)" "length of a long target"
ln -s loop loop
! cat loop 2>"$scratch/error" || fail "a loop was followed"
grep -q 'Too many levels' "$scratch/error" || fail "not ELOOP: $(cat "$scratch/error")"
