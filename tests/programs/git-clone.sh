#!/usr/bin/env bash
# git: clone thousands of files, fsck, change branches, commit, collect, clone again.
. "$(dirname "$0")/common.bash"
need git git
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
export GIT_AUTHOR_NAME=Test GIT_AUTHOR_EMAIL=test@example.org GIT_AUTHOR_DATE='1700000000 +0000'
export GIT_COMMITTER_NAME=Test GIT_COMMITTER_EMAIL=test@example.org
export GIT_COMMITTER_DATE='1700000000 +0000'
files=$(pick 3000 20000)
commits=$(pick 20 100)

# One branch of $commits commits; each adds its share of the files and changes one earlier file.
history() {
    awk -v files="$files" -v commits="$commits" '
    function body(n, c,   i, text) {
        text = ""
        for (i = 0; i <= n % 61; i++) text = text n " " c " " (n * (i + 3)) % 65521 "\n"
        return text
    }
    function put(n, c,   text) {
        text = body(n, c)
        printf "M 100644 inline d%02d/e%02d/file-%05d.txt\n", n % 40, (n / 40) % 40, n
        printf "data %d\n%s\n", length(text), text
    }
    BEGIN {
        for (c = 1; c <= commits; c++) {
            print "commit refs/heads/main\nmark :" c
            print "committer Test <test@example.org> " (1700000000 + c) " +0000"
            print "data 6\ncommit"
            if (c > 1) print "from :" (c - 1)
            for (n = c; n <= files; n += commits) put(n, c)
            if (c > 1) put(c - 1, c)
            print ""
        }
    }'
}

git init -q --bare -b main "$scratch/origin.git"
history | git -C "$scratch/origin.git" fast-import --quiet
git clone -q --no-local "$scratch/origin.git" clone
cd clone
same "$files" "$(git ls-files | wc -l)" "files in the clone"
same "" "$(git status --porcelain)" "git status after the clone"
git fsck --full --strict --no-progress

git checkout -q "main~$((commits / 2))"
same "" "$(git status --porcelain)" "git status after going back"
git checkout -q main
git checkout -q -b work
git mv d01 moved
echo change >>moved/e00/file-00001.txt
git commit -q -a -m change
git repack -q -a -d
git gc -q --prune=now
git fsck --full --strict --no-progress

cd ..
git clone -q --no-local clone second
same "$(git -C clone rev-parse 'work^{tree}')" "$(git -C second rev-parse 'HEAD^{tree}')" tree
diff -r --exclude=.git clone second
