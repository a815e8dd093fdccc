#!/bin/sh
# Finds out what this machine's GPU does, in two runs: `./run.sh [OUT]`, then `./run.sh --rest [OUT]`. The first ends within 220 seconds and has what
# the rest depends on and the figures that matter most; the second ends within 490 seconds. On a machine that is lent for 900 seconds, this leaves 190
# to start it. Run the second at once, while the machine is held, with another OUT.
#
# OUT (./out if none is named) gets three files: results.json, table.txt and logs.tgz with NAME.json (one object per line) and NAME.log of each part.
# A part has a time limit and a process group of its own, which is killed at the end of the part; the driver then ends its kernels. A part that fails or
# hangs does not stop the next. One that cannot run is SKIPPED with the reason, which does not count as passed. results.json and logs.tgz are written
# after each part, so a run that is cut off leaves those of the parts that ended; until the last part results.json has "complete":false. Clocks and link
# are read before and after each part, not during it.
#
#   --rest       the parts of the second run instead of the first
#   --all        those of both
#   --quick      little of everything: a look at whether it works, no figures
#   --part NAME  that part alone
#   --limit N    seconds for each part, and for each row of benchmarks, instead of its own
#   --parts      prints the parts of this run, with their limits in seconds
#
# Needs glibc 2.34 or newer, a driver, and the usual tools (awk, grep, timeout and the like). Exit codes: 0 all passed, 1 a part failed or it was
# interrupted, 2 the arguments make no sense or OUT cannot be written, 3 none failed and some were skipped.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1

# With four seconds to end each and to read the clocks: less than 220 and 490 seconds. `waits` is early: it decides how to read the rest.
first='probe 20
light 30
waits 20
twin 35
bench 40
kernel 40'
# Last a part that destroys a context under a kernel, and those under a sanitizer, which changes the launches.
rest='conformance 40
waits-rest 40
bench-rest 55
launches 25
product 15
pools 40
torch 60
soak 30
faults 25
memcheck 35
synccheck 30
initcheck 30'

usage() {
    echo "run.sh: $1" >&2
    echo 'usage: run.sh [--rest | --all] [--quick] [--part NAME] [--limit SECONDS] [--parts] [OUT]' >&2
    exit 2
}

# Ends a part that cannot run.
skip() {
    echo "$1" >&2
    exit 3
}

need_gpu() {
    "$here/gpu_suite" probe > /dev/null || exit $?
}

# A part's facts, whole or quick.
suite() {
    if [ -n "$quick" ]; then set -- "$@" --quick; fi
    exec "$here/gpu_suite" "$@"
}

# Rows of the benchmarks, each in a process and with a limit of its own: one that hangs does not take those after it along.
bench() {
    need_gpu
    each=${RINGMEM_BUNDLE_EACH:-12} failed=''
    if [ "$limit" -lt "$each" ]; then each=$limit; fi
    for case in $cases; do
        # In this process group: it ends with the part.
        timeout --foreground -k 1 "$each" "$here/gpu_suite" bench "$case" ${quick:+--quick}
        code=$?
        case $code in
        0) ;;
        124 | 137) failed="$failed${failed:+; }$case: ended after $each s" ;;
        *) failed="$failed${failed:+; }$case: exit code $code" ;;
        esac
    done
    [ -z "$failed" ] || { echo "failed $failed" >&2 && exit 1; }
    exit 0
}

# The path of a program of CUDA's toolkit, or nothing.
find_tool() {
    command -v "$1" || find /usr/local/cuda*/bin /opt/cuda*/bin -name "$1" 2> /dev/null | head -n 1
}

# Sets `program` to a Python that starts.
need_python() {
    program=$(command -v python3) || skip 'no python3'
    "$program" -c '' || skip "$program does not start"
}

# A short run under a tool of compute-sanitizer's, whose report goes to TOOL.txt.
sanitizer() {
    program=$(find_tool compute-sanitizer)
    [ -n "$program" ] || skip 'no compute-sanitizer in PATH, /usr/local/cuda* or /opt/cuda*'
    need_gpu
    rm -f "$work/logs/$1.txt"
    tool=$1
    set -- "$here/gpu_suite" short
    # The suite checks all results. A query of an unfinished event is no error.
    if [ "$tool" = memcheck ]; then set -- --report-api-errors no "$@"; fi
    "$program" --tool "$tool" --error-exitcode 9 --log-file "$work/logs/$tool.txt" "$@"
    code=$?
    [ $code -eq 0 ] || [ ! -f "$work/logs/$tool.txt" ] || tail -n 1 "$work/logs/$tool.txt" >&2
    exit $code
}

# Which driver calls wait for a running kernel, with as many hardware queues as possible: 32. With fewer, which streams do.
waits() {
    need_python
    need_gpu
    code=0
    for connections in "$@"; do
        echo "{\"connections\":$connections}"
        streams=''
        [ "$connections" = 32 ] || streams=--streams
        CUDA_LOG_FILE=$work/logs/waits-$connections.cuda CUDA_DEVICE_MAX_CONNECTIONS=$connections \
            "$program" "$here/waits.py" $streams "$here/ringmem.ptx" || code=$?
    done
    exit $code
}

# Compiles the C++ programs while other parts run; `twin.code` then says how that ended.
compile() {
    program=$(find_tool nvcc)
    code=1
    for arch in native sm_80; do
        # Older ones do not know `native`; what is compiled for sm_80 runs on what came after it.
        "$program" -O3 -std=c++17 -arch=$arch -o "$work/twin" "$here/twin.cu" && code=0 && break
    done
    echo $code > "$work/twin.part" && mv "$work/twin.part" "$work/twin.code"
    exit 0
}

# A part of the C++ programs.
twin() {
    [ -n "$(find_tool nvcc)" ] || skip 'no nvcc in PATH, /usr/local/cuda* or /opt/cuda*'
    command -v g++ > /dev/null || command -v c++ > /dev/null || skip 'no C++ compiler for nvcc to use'
    need_gpu
    while [ ! -f "$work/twin.code" ]; do sleep 0.1; done
    [ "$(cat "$work/twin.code")" = 0 ] || { tail -n 3 "$work/logs/nvcc.log" >&2 && exit 1; }
    exec "$work/twin" "$1"
}

pools() {
    need_python
    need_gpu
    exec "$program" "$here/pools.py"
}

torch() {
    need_python
    need_gpu
    [ -f "$here/libringmem_capi.so" ] || skip 'no libringmem_capi.so in the bundle'
    if [ -n "$quick" ]; then export RINGMEM_BUNDLE_QUICK=1; fi
    "$program" "$here/torch_allocators.py" "$here/libringmem_capi.so" || exit $?
    [ -n "$quick" ] || exec "$program" "$here/torch_tensors.py" "$here/libringmem_capi.so"
    exit 0
}

# What a part does, in a process that has a limit of time.
body() {
    # Since CUDA 12.9, the driver explains failed calls there. Not in measurements: a driver may log each query of an unfinished event.
    case $1 in
    probe | light | conformance | kernel | soak | faults | *check) export CUDA_LOG_FILE="$work/logs/$1.cuda" ;;
    esac
    case $1 in
    probe)
        need_gpu
        timeout 5 nvidia-smi -q >> "$work/logs/machine.txt" 2>&1
        exec "$here/ringmem" doctor --backend cuda --json
        ;;
    light | conformance | kernel | faults) suite "$1" ;;
    soak) suite soak --seconds $((limit > 30 ? limit - 15 : limit / 2)) ;;
    memcheck | synccheck | initcheck) sanitizer "$1" ;;
    bench)
        cases='round-trip round-trip-p99 flagged-trip messages h2d d2h flush flush-large pool-1M'
        bench
        ;;
    bench-rest)
        cases='accounts d2d stream stream-back flush-16M flush-back flush-back-large overlap pool-64K messages-8'
        # Blocks of 100 MB and more are nothing to look at quickly.
        [ -n "$quick" ] || cases="$cases pool-100M pool-1G"
        bench
        ;;
    twin) twin rings ;;
    launches | product) twin "$1" ;;
    pools) pools ;;
    torch) torch ;;
    waits) waits 32 ;;
    # The default number, and one.
    waits-rest) waits 8 1 ;;
    esac
}

quick='' only='' most='' out='' parts=$first lists=''
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=1 ;;
    --rest) parts=$rest ;;
    --all)
        parts="$first
$rest"
        ;;
    --part | --limit | --body)
        [ $# -gt 1 ] && [ -n "$2" ] || usage "$1 needs a value"
        case $1 in
        --part)
            only=$2
            parts="$first
$rest"
            ;;
        --limit) most=$2 ;;
        # How this script calls itself.
        --body) inside=$2 ;;
        esac
        shift
        ;;
    --parts) lists=1 ;;
    -*) usage "there is no $1" ;;
    *) [ -z "$out" ] || usage "two folders: $out and $1" && out=$1 ;;
    esac
    shift
done
if [ -n "$lists" ]; then echo "$parts" && exit 0; fi
case $most in *[!0-9]* | 0* | ??????*) usage "--limit $most is no number of seconds" ;; esac
out=${out:-./out}
if [ -n "${inside:-}" ]; then
    work=$RINGMEM_BUNDLE_WORK limit=${RINGMEM_BUNDLE_LIMIT:-0}
    if [ "$inside" = compile ]; then compile; fi
    body "$inside"
fi

case "
$parts" in
*"
$only "*) ;;
*) [ -z "$only" ] || usage "there is no part $only; there are: $(echo "$parts" | cut -d ' ' -f 1 | tr '\n' ' ')" ;;
esac
command -v timeout > /dev/null || usage 'timeout, which coreutils has, is missing: parts cannot be ended'
{ mkdir -p "$out" && out=$(cd "$out" && pwd) && work=$(mktemp "$out/.run.XXXXXX") && rm -f "$work"; } || usage "nothing can be written into $out"
{ work=$(mktemp -d "${TMPDIR:-/tmp}/ringmem.XXXXXX") && mkdir "$work/logs"; } || usage "nothing can be written into ${TMPDIR:-/tmp}"
RINGMEM_BUNDLE_WORK=$work
# The kernels are compiled once, also where a home cannot be written.
mkdir "$work/cache"
CUDA_CACHE_PATH=$work/cache CUDA_CACHE_DISABLE=0
# With fewer queues than streams, what is queued on one stream waits for the kernel that listens on another.
CUDA_DEVICE_MAX_CONNECTIONS=32
# Some images leave the driver outside the loader's folders.
LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/nvidia/lib64:/usr/local/nvidia/lib
export RINGMEM_BUNDLE_WORK CUDA_CACHE_PATH CUDA_CACHE_DISABLE CUDA_DEVICE_MAX_CONNECTIONS LD_LIBRARY_PATH
# A launch would wait for a kernel that listens, copies would share a queue, the PTX would be compiled each time or not at all.
unset CUDA_LAUNCH_BLOCKING CUDA_DEVICE_MAX_COPY_CONNECTIONS CUDA_SCALE_LAUNCH_QUEUES CUDA_LOG_FILE
unset CUDA_FORCE_PTX_JIT CUDA_FORCE_JIT CUDA_DISABLE_PTX_JIT CUDA_DISABLE_JIT
# Without an open device, each process initialises the GPU again.
held=none
for device in /dev/nvidia[0-9]*; do
    if { command exec 9< "$device"; } 2> /dev/null; then
        held=$device
        break
    fi
done
# `cargo xtask gpu-bundle` writes it.
commit=$(cat "$here/commit.txt" 2> /dev/null) || commit=unknown
{
    printf 'commit: %s\ndevice file held open: %s\n' "$commit" "$held"
    env | grep '^CUDA'
} > "$work/logs/machine.txt"
# Bundles are carried by what forgets modes.
chmod u+x "$here/ringmem" "$here/gpu_suite" 2> /dev/null

running='' guard='' beside=''
# Ends all of a part that is left.
end_part() {
    if [ -n "$guard" ]; then kill "$guard" && wait "$guard"; fi
    if [ -n "$running" ]; then
        kill -s KILL -- "-$running"
        # Ended is not gone: what the driver had for them goes with them, before the next part begins.
        for _ in 1 2 3 4 5 6 7 8 9 10; do kill -s 0 -- "-$running" && sleep 0.1; done
    fi
    running='' guard=''
} 2> /dev/null

# Each has a group of its own, which `timeout` ends with itself.
end_beside() {
    for job in $beside; do kill "$job" && wait "$job"; done
} 2> /dev/null

# A part that has just begun has no group yet.
trap 'echo "run.sh: interrupted; $out/results.json has what was done" >&2; kill -s KILL "$running" 2> /dev/null; exit 1' INT TERM HUP
# The group of a part is its own, and does not hear of it. What is said twice does not interrupt the end.
trap 'trap "" INT TERM HUP; end_part; end_beside; rm -rf "$work"' EXIT

# Text as the inside of a string of JSON.
quoted() {
    LC_ALL=C tr -d '\000-\037\177-\377' | tr '\\"' "/'" | cut -c 1-300
}

# The lines that are whole objects: half a line of a part that was ended is none.
objects_of() {
    awk '/^\{.*\}$/ {
        line = $0
        gsub(/\\./, "", line)
        gsub(/"[^"]*"/, "", line)
        if (line !~ /"/ && gsub(/[{[]/, "", line) == gsub(/[]}]/, "", line)) print
    }' "$1"
}

# The name of the first GPU, as a part's objects have it.
gpu_of() {
    awk '!found && match($0, /"gpus":\[("|\{[^]}]*"name":")[^"]*/) {
        found = 1
        name = substr($0, RSTART, RLENGTH)
        sub(/.*"/, "", name)
        print name
    }' "$1" | quoted
}

now() {
    date +%s
}

# Clocks in MHz, the link, temperature and watts, as nvidia-smi says them.
clocks() {
    timeout 3 nvidia-smi --query-gpu=clocks.sm,clocks.mem,pcie.link.gen.current,pcie.link.width.current,temperature.gpu,power.draw \
        --format=csv,noheader,nounits 2> /dev/null | head -n 1 | quoted
}

# The memory of a virtual machine may grow while it runs.
memory() {
    { echo "== $1" && cat /proc/meminfo; } >> "$work/logs/meminfo.txt" 2> /dev/null
}

# Keeps the end of the driver's logs, which have no limit.
shorten() {
    for log in "$work/logs/"*.cuda*; do
        if [ -s "$log" ]; then
            tail -c 500000 "$log" > "$work/log" && mv "$work/log" "$log"
        else
            rm -f "$log"
        fi
    done
}

# Whether one of these parts is among this run's.
includes() {
    for part in "$@"; do
        case "
${only:-$parts} " in
        *"
$part "*) return 0 ;;
        esac
    done
    return 1
}

failed=0 skipped=0 ran=0 objects='' all=false gpu=''
# Writes results.json at once, or not at all. Takes whether the last part is over.
results() {
    {
        printf '{"passed":%s,"complete":%s,"failed":%s,"skipped":%s,"quick":%s,' "$all" "$1" "$failed" "$skipped" "$([ -n "$quick" ] && echo true || echo false)"
        printf '"commit":"%s","date":"%s","gpu":"%s","machine":"%s","processor":"%s","driver":"%s","parts":[\n%s\n]}\n' \
            "$(echo "$commit" | quoted)" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$gpu" "$(uname -srm | quoted)" "$(grep -m 1 'model name' /proc/cpuinfo 2> /dev/null | cut -d : -f 2 | quoted)" \
            "$(head -n 1 /proc/driver/nvidia/version 2> /dev/null | quoted)" "$objects"
    } > "$out/.results" && mv "$out/.results" "$out/results.json" && return
    echo "run.sh: $out/results.json cannot be written" >&2
    exit 1
}

# Writes logs.tgz at once; without tar, a folder.
logs() {
    tar czf "$out/.logs" -C "$work/logs" . && mv "$out/.logs" "$out/logs.tgz" && return
    rm -f "$out/.logs"
    cp -R "$work/logs" "$out/"
} 2> /dev/null

begun=$(now)
results false
# What takes long and needs no GPU runs beside the first parts: the compiler, and Python's first look at its largest modules.
if includes twin launches product && [ -n "$(find_tool nvcc)" ]; then
    timeout 100 /bin/sh "$here/run.sh" --body compile "$out" > "$work/logs/nvcc.log" 2>&1 < /dev/null &
    beside="$beside $!"
fi
if includes pools torch && command -v python3 > /dev/null; then
    timeout 100 python3 -c 'import torch, cupy' > /dev/null 2>&1 < /dev/null &
    beside="$beside $!"
fi
: > "$work/rows"
while read -r name limit; do
    if [ -n "$only" ] && [ "$only" != "$name" ]; then continue; fi
    limit=${most:-$limit}
    echo "== $name, at most $limit s" >&2
    before=$(clocks)
    memory "$name, before"
    from=$(now)
    RINGMEM_BUNDLE_LIMIT=$limit RINGMEM_BUNDLE_EACH=${most:-12} timeout -k 2 "$limit" /bin/sh "$here/run.sh" ${quick:+--quick} --body "$name" "$out" > "$work/logs/$name.json" 2> "$work/logs/$name.log" < /dev/null &
    running=$!
    # One that hangs within the system cannot be ended, and `timeout` would wait for it.
    timeout $((limit + 100)) /bin/sh -c "sleep $((limit + 5)); kill -s KILL $running" > /dev/null 2>&1 < /dev/null &
    guard=$!
    wait "$running"
    code=$?
    end_part
    took=$(($(now) - from))
    after=$(clocks)
    memory "$name, after"
    shorten
    # The last fact that does not hold, else whatever was said last.
    reason=$(grep '^failed ' "$work/logs/$name.log" | tail -n 1 | quoted)
    reason=${reason:-$(grep -v '^[[:space:]]*$' "$work/logs/$name.log" | tail -n 1 | quoted)}
    case $code in
    0) result=passed reason='' ;;
    3 | 4) result=SKIPPED skipped=$((skipped + 1)) ;;
    124) result=FAILED failed=$((failed + 1)) reason="ended after $limit s: $reason" ;;
    137) result=FAILED failed=$((failed + 1)) reason="killed after $took s: $reason" ;;
    *) result=FAILED failed=$((failed + 1)) reason="exit code $code: $reason" ;;
    esac
    ran=$((ran + 1))
    printf '%-12s %-8s %6s s  %s\n' "$name" "$result" "$took" "$reason" >> "$work/table"
    printf '   %s %s\n' "$result" "$reason" >&2
    objects_of "$work/logs/$name.json" > "$work/objects"
    case $name in light | bench | bench-rest | twin | launches | product | pools) cat "$work/objects" >> "$work/rows" ;; esac
    gpu=${gpu:-$(gpu_of "$work/objects")}
    lines=$(tr '\n' ',' < "$work/objects")
    objects="$objects${objects:+,
}{\"part\":\"$name\",\"result\":\"$result\",\"exit\":$code,\"seconds\":$took,\"limit\":$limit,\"reason\":\"$reason\",\"clocks\":[\"$before\",\"$after\"],\"out\":[${lines%,}]}"
    results false
    logs
done << END
$parts
END

if [ $failed -gt 0 ] || [ $ran -eq 0 ]; then code=1; elif [ $skipped -gt 0 ]; then code=3; else all=true code=0; fi
results true

# The value of a key in an object of one level.
{
    awk '
    function value(key, at) {
        if (!match($0, "\"" key "\":(\"[^\"]*\"|[^,}]*)")) return ""
        at = substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
        gsub(/"/, "", at)
        return at == "null" ? "" : at
    }
    function two(number) { return number == "" ? "" : sprintf("%.2f", number) }
    # In the unit, where it is no ratio.
    function within(number) { return number == "" ? "" : sprintf(", aim %.1f", number) }
    /^\{.*"workload".*\}$/ {
        if (!rows++) printf "%-16s %-24s %14s %14s %7s %5s  %s\n", "workload", "subject", "median", "limit", "ratio", "aim", "unit"
        printf "%-16s %-24s %14.1f %14s %7s %5s  %s%s\n", value("workload"), value("subject"), value("median"), two(value("limit")), \
            two(value("ratio")), two(value("aim")), value("unit"), within(value("aim_ns"))
    }
    END { if (rows) print "" }
' "$work/rows"
    cat "$work/table"
    echo "$failed failed, $skipped skipped, $(($(now) - begun)) s; $out/results.json"
} > "$work/said"
cat "$work/said" > "$out/table.txt"
cat "$work/said"
exit $code
