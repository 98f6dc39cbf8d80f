#!/usr/bin/env bash
# A real C project (jemalloc): configure runs hundreds of small programs, make builds it.
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
make -j2 build_lib_static >"$scratch/log" 2>&1 || fail "make: $(tail -5 "$scratch/log")"
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
make -n build_lib_static | grep -q 'src/jemalloc' && fail "make would build again: times are wrong"
if [ "$size" = full ]; then
    make -j2 build_lib_shared >"$scratch/log" 2>&1 || fail "make: $(tail -5 "$scratch/log")"
    cc -Iinclude -o use-shared use.c -Llib -ljemalloc -Wl,-rpath,"$PWD/lib"
    ./use-shared
    make -j2 check_unit >"$scratch/log" 2>&1 || fail "make check: $(tail -20 "$scratch/log")"
fi
