#!/bin/sh
# Runs a command, and says what it does every ten seconds for as long as it takes: packaging/saying.sh WHAT COMMAND [ARGUMENT]...
what=$1
shift
(
    seconds=0
    # One second at a time: whoever reads this would wait for the sleep that is left at the end.
    while sleep 1; do
        seconds=$((seconds + 1))
        [ $((seconds % 10)) -ne 0 ] || echo "... $what: $seconds s"
    done
) >&2 &
ticker=$!
"$@"
code=$?
kill "$ticker"
exit "$code"
