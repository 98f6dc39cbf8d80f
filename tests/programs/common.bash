# Sourced by every workload: NAME.sh DIRECTORY [small|full]
#
# A workload works in DIRECTORY, which is empty and on the file system under test, keeps what must
# not be on it in $scratch, and ends with 0 (passed), 77 (skipped; the last line says why) or
# anything else (failed). On a plain directory it must pass too: that run is the control.
set -euo pipefail
export LC_ALL=C TZ=UTC

programs=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$programs/../.." && pwd)
dir=$(cd "${1:?usage: NAME.sh DIRECTORY [small|full]}" && pwd)
size=${2:-small}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$dir"

fail() {
    echo "FAIL: $*" >&2
    exit 1
}
skip() {
    echo "$*"
    exit 77
}
need() { command -v "$1" >/dev/null 2>&1 || skip "no $1 (package $2)"; }

# pick SMALL FULL: the one for this run's size
pick() { if [ "$size" = full ]; then echo "$2"; else echo "$1"; fi; }

# same EXPECTED FOUND WHAT
same() { [ "$1" = "$2" ] || fail "$3: expected '$1', found '$2'"; }

# compile NAME: builds helpers/NAME.c into $scratch/NAME
compile() {
    need cc gcc
    cc -O1 -Wall -Wextra -Werror -pthread -o "$scratch/$1" "$programs/helpers/$1.c"
}

# tree DIRECTORY FOLDERS FILES: the same small files on every run, FILES in each of FOLDERS
tree() {
    mkdir -p "$1"
    (
        cd "$1"
        seq -f 'folder-%03g' "$2" | xargs mkdir -p
        awk -v folders="$2" -v files="$3" 'BEGIN {
            for (d = 1; d <= folders; d++) for (f = 1; f <= files; f++) {
                name = sprintf("folder-%03d/file-%04d.txt", d, f)
                lines = (d * 31 + f * 17) % 97
                for (i = 0; i <= lines; i++) print d, f, i, (d * f * (i + 7)) % 65521 > name
                close(name)
            }
        }'
    )
}
