#!/usr/bin/env bash
# find, du and rm over a big tree; a directory listed while it changes keeps what stays.
. "$(dirname "$0")/common.bash"
folders=$(pick 30 200)
files=$(pick 100 500)
tree big "$folders" "$files"
same $((folders * files)) "$(find big -type f | wc -l)" "files found"
same "$((folders + 2))" "$(stat -c %h big)" "links of the parent"
same "$(find big -type f -printf '%s\n' | awk '{s += $1} END {print s}')" \
    "$(find big -type f -print0 | du -bc --files0-from=- | tail -1 | cut -f1)" "bytes by du"
same "" "$(find big -newermt '2200-01-01')" "files from the future"

# One directory, listed again and again while names come and go: what stays is always there, once.
mkdir flux
seq -f 'flux/stay-%g' "$files" | xargs touch
(
    while [ ! -e "$scratch/stop" ]; do
        seq -f 'flux/come-%g' 60 | xargs touch
        seq -f 'flux/come-%g' 60 | xargs rm -f
    done
) &
changer=$!
for ((round = 0; round < $(pick 30 300); round++)); do
    same "$files" "$(ls -U flux | grep -c '^stay-')" "names that stay, round $round"
    same "" "$(ls -U flux | sort | uniq -d)" "names seen twice, round $round"
done
touch "$scratch/stop"
wait "$changer"
rm -rf big flux
same "" "$(ls -A)" "left after rm -rf"
