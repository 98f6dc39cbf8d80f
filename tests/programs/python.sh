#!/usr/bin/env bash
# Python: streams, trees, temporary files, children, mappings and locks; what it finds on the volume
# is what it finds on a plain directory.
. "$(dirname "$0")/common.bash"
need python3 python3
mkdir "$scratch/plain" "$dir/volume"
# Not every plain directory has extended attributes.
attributes=none
: >"$scratch/probe"
python3 -c 'import os, sys; os.setxattr(sys.argv[1], "user.k", b"v")' "$scratch/probe" \
    2>/dev/null &&
    attributes=xattr
run() { python3 "$programs/helpers/files.py" "$1" "$attributes"; }
run "$scratch/plain" >"$scratch/expected" || fail "on the plain directory"
run "$dir/volume" >"$scratch/found" || fail "after: $(tail -3 "$scratch/found")"
diff "$scratch/expected" "$scratch/found" || fail "it finds something else"
