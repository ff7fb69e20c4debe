# result CASE OUTCOME DETAIL: one line of the table.
# OUTCOME is ok, refused (zero-copy, with the reason) or failed.
result() { echo "RESULT|$1|$2|$(echo "$3" | tr '\n|' ' /' | cut -c -400)"; }
suite=$(cat /name)
