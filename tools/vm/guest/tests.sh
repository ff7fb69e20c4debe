# Test binaries of cargo: a line for each, with its count.
while read -r name; do
    echo "vm: $name"
    if (cd /tmp && timeout 2400 "/tests/$name" --test-threads 2 --show-output </dev/null >/tmp/tests.log 2>&1); then
        status=ok
    else
        status=failed
        grep -B 1 -A 12 -E 'panicked at|^error' /tmp/tests.log | head -n 60
    fi
    skipped=$(grep -c '^SKIP ' /tmp/tests.log)
    result "$name" "$status" "$(grep '^test result' /tmp/tests.log | cut -d ';' -f 1,2); $skipped said SKIP"
done </tests/list
