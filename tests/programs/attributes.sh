#!/usr/bin/env bash
# cp -a with extended attributes and ACLs: nothing is lost on the way there and back.
. "$(dirname "$0")/common.bash"
need setfattr attr
need setfacl acl
tree tree 4 10
for file in tree/folder-00*/file-000?.txt; do
    setfattr -n user.name -v "$file" "$file"
    setfattr -n user.empty "$file"
    setfacl -m u:1234:rw,g:4321:r,m::rw "$file"
done
setfattr -n user.big -v "0s$(head -c 3000 /dev/zero | base64 -w0)" tree/folder-001/file-0001.txt
setfacl -d -m u:1234:rwx,g::rx,o::- tree/folder-002
if [ "$(id -u)" = 0 ]; then
    setfattr -n trusted.secret -v hidden tree/folder-003
    chown -R 1000:1001 tree/folder-003
    chmod 2755 tree/folder-003
fi

cp -a tree copy
describe() {
    (
        cd "$1"
        find . -printf '%p %y %m %U %G %s %T@\n' | sort
        find . | sort | getfattr -d -m - -h - 2>/dev/null || true
        find . -type f -o -type d | sort | xargs getfattr -d -m '^user|^trusted' -e hex
        find . -type f -o -type d | sort | xargs getfacl -n
    )
}
diff <(describe tree) <(describe copy)
same 'copy' "$(getfattr --only-values -n user.name copy/folder-001/file-0001.txt |
    sed 's,^tree.*,copy,')" "a copied attribute"

# A default ACL is inherited; chmod changes the mask; removal leaves the mode.
mkdir tree/folder-002/child
getfacl -n tree/folder-002/child | grep -q '^default:user:1234:rwx' || fail "no inherited default"
touch tree/folder-002/new
getfacl -n tree/folder-002/new | grep -q '^user:1234:rwx' || fail "no inherited entry"
chmod 600 tree/folder-001/file-0001.txt
getfacl -n tree/folder-001/file-0001.txt | grep -q '^mask::---' || fail "chmod left the mask"
setfacl -b tree/folder-001/file-0001.txt
same 600 "$(stat -c %a tree/folder-001/file-0001.txt)" "mode without an ACL"
setfattr -x user.name tree/folder-001/file-0001.txt
! getfattr -n user.name tree/folder-001/file-0001.txt 2>/dev/null || fail "still there"
