#!/usr/bin/env bash
# A real C project (jemalloc): configure runs hundreds of small programs, make builds it; at the
# small size a dozen of its files, as each takes the compiler a second and a half.
. "$(dirname "$0")/common.bash"
need make make
need cc gcc
source=$root/target/sources/tikv-jemalloc-sys
[ -d "$source" ] || skip "no sources; run scripts/setup test"

cp -r "$source/jemalloc" jemalloc
# The crate ships the generated configure beside the project.
cp "$source/configure/configure" jemalloc/configure
cd jemalloc
# Not optimised: the build is the test, and its speed is not.
CFLAGS=-O0 ./configure --quiet --disable-cxx --with-version=5.3.1-0-g0 --with-jemalloc-prefix=je_ \
    >"$scratch/log" 2>&1 || fail "configure: $(tail -5 "$scratch/log")"
some=()
sources=(src/{ckh,ctl,div,extent,hook,large,nstime,pages,rtree,stats,sz,util}.c)
[ "$size" = full ] || some=("C_SRCS=${sources[*]}")
make -j2 "${some[@]}" build_lib_static >"$scratch/log" 2>&1 ||
    fail "make: $(tail -5 "$scratch/log")"
make -n "${some[@]}" build_lib_static | grep -q '^gcc\|^cc' &&
    fail "make would build again: times are wrong"
ar t lib/libjemalloc.a >"$scratch/members"
for file in "${sources[@]}"; do
    grep -qx "$(basename "$file" .c).o" "$scratch/members" || fail "$file is not in the library"
done
if [ "$size" = full ]; then
    cat >use.c <<'C'
#include <jemalloc/jemalloc.h>
int main(void) {
    char *bytes = je_malloc(1 << 20);
    if (!bytes) return 1;
    bytes[12345] = 7;
    int right = bytes[12345] == 7;
    je_free(bytes);
    return !right;
}
C
    cc -Iinclude -o use use.c lib/libjemalloc.a -lpthread -ldl -lm
    ./use
    make -j2 build_lib_shared >"$scratch/log" 2>&1 || fail "make: $(tail -5 "$scratch/log")"
    cc -Iinclude -o use-shared use.c -Llib -ljemalloc -Wl,-rpath,"$PWD/lib"
    ./use-shared
    make -j2 check_unit >"$scratch/log" 2>&1 || fail "make check: $(tail -20 "$scratch/log")"
fi
