# Completes processes, GPUs, users, notebooks and rules. fish quotes the output of gpumem, and never evaluates it.
function __fish_gpumem_values
    command gpumem complete -- (commandline -opc) (commandline -ct) 2>/dev/null
end

# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_gpumem_global_optspecs
    string join \n V/version h/help nvml-library= nvml-timeout= config= color= utc store-dir=
end

function __fish_gpumem_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_gpumem_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_gpumem_using_subcommand
    set -l cmd (__fish_gpumem_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c gpumem -n "__fish_gpumem_needs_command" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_needs_command" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_needs_command" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_needs_command" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_needs_command" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_needs_command" -s V -l version -d 'Print the versions of gpumem and, if there is a driver, of NVML and the driver'
complete -c gpumem -n "__fish_gpumem_needs_command" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_needs_command" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "ps" -d 'Show who holds GPU memory now'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "check" -d 'Check whether GPU memory is wasted; the exit code is the verdict'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "explain" -d 'Explain a process, GPU or finding: its owner, history and evidence, and what to do'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "watch" -d 'Watch GPUs, processes and findings live in the terminal, and free memory'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "reap" -d 'Free unneeded GPU memory: show a plan, kill processes, and verify that the memory was freed'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "kill" -d 'Kill processes that hold GPU memory, and verify that the memory was freed'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "release" -d 'Ask processes to release unneeded GPU memory and keep running, and verify that it was freed'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "park" -d 'Move a process\'s GPU memory to host memory and keep the process (experimental)'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "unpark" -d 'Move the memory of parked processes back to their GPUs (experimental)'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "run" -d 'Run a command, and report its GPU use, leaks, and processes left behind'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "record" -d 'Record samples, one JSON snapshot per line'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "metrics" -d 'Print metrics and findings for Prometheus, once'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "serve" -d 'Serve metrics and the newest verdict over HTTP, for Prometheus'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "rules" -d 'List the rules with their settings'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "config" -d 'Show, validate or test the configuration'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "doctor" -d 'Show what works on this machine, what does not, and what to do about it'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "schema" -d 'Print the JSON Schema of a format that gpumem writes'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "completions" -d 'Print the completion script for a shell'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "man" -d 'Show a manual page; if standard output is not a terminal, print its roff source'
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l gpu -d 'Only these GPUs, by index, UUID, UUID prefix or device file' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l user -d 'Only processes of these users, by name or uid' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l where -d 'Select rows by terms, as with / in watch: \'user:ann gpu:0 idle>10m\'' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l sort -d 'Sort the processes by this field' -r -f -a "gpu\t'GPU, then GPU memory'
pid\t'Process id'
user\t'Owner'
memory\t'GPU memory, largest first'
sm\t'SM utilization, highest first'
cpu-time\t'Total CPU time, longest first'
host-memory\t'Resident host memory, largest first'
runtime\t'Time since start, longest first'
command\t'Command line'"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l by -d 'Print totals by user, job, container or framework instead, largest first' -r -f -a "user\t''
job\t''
container\t''
framework\t''"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l replay -d 'Replay a recording (.jsonl, .jsonl.zst, or - for standard input)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l host -d 'Query these machines over ssh instead of this one (HOST or USER@HOST, n[01-64], separated by commas)' -r -f -a "(__fish_print_hostnames)"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l hosts -d 'Query the machines listed in this file, one per line' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l host-command -d 'Command that runs gpumem on these machines, such as `sudo -n gpumem`' -r -f -a "(__fish_complete_command)"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l json -d 'Print the snapshot as JSON'
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l no-store -d 'Ignore the history stored by `gpumem record --store`'
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l demo -d 'Replay the built-in recording of four GPUs'
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l format -d 'Output format [default: text]' -r -f -a "text\t'Text for people'
json\t'JSON document (gpumem.check/1)'
junit\t'JUnit XML, with a test for each rule, limit, wait and baseline'
github\t'Annotations for GitHub Actions'"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l window -d 'Sampling time [default: 30s; 2s if `gpumem record --store` is running]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l interval -d 'Time between samples [default: 1s, or as configured]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l fail-on -d 'Minimum severity for exit code 1 [default: warning; none with --wait-free]' -r -f -a "info\t'Anything found'
warning\t'Memory is wasted'
critical\t'Work is in danger'"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l kind -d 'Apply only rules of these kinds, even disabled ones' -r -f -a "dead\t''
stuck\t''
orphan\t''
stopped\t''
hung\t''
placeholder\t''
idle\t''
leak\t''
server-idle\t''
reserved\t''
unattributed\t''
pressure\t''"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l gpu -d 'Only these GPUs, by index, UUID, UUID prefix or device file' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l user -d 'Only processes of these users, by name or uid' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l where -d 'Select rows by terms, as with / in watch: \'user:ann gpu:0 idle>10m\'' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l max-used -d 'Fail if more than this amount of memory is used on a GPU in the last sample' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l max-unattributed -d 'Fail if more than this amount of memory on a GPU is unattributed (held by no listed process)' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l wait-free -d 'Wait until this much memory is free on the given GPU, or on any GPU' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l print -d 'Print only the free GPUs, for scripts' -r -f -a "uuid\t'By its UUID'
index\t'By NVML index, which equals CUDA\'s only if CUDA_DEVICE_ORDER is PCI_BUS_ID'"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l timeout -d 'How long --wait-free waits before gpumem exits with 1' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l baseline -d 'Fail on holders that are not in FILE (output of `gpumem ps --json`)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l replay -d 'Replay a recording (.jsonl, .jsonl.zst, or - for standard input)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l host -d 'Query these machines over ssh instead of this one (HOST or USER@HOST, n[01-64], separated by commas)' -r -f -a "(__fish_print_hostnames)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l hosts -d 'Query the machines listed in this file, one per line' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l host-command -d 'Command that runs gpumem on these machines, such as `sudo -n gpumem`' -r -f -a "(__fish_complete_command)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l json -d 'Print one JSON document, even on failure; short for --format json'
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -s v -l verbose -d 'With --wait-free, also list findings and undecided rules'
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -s q -l quiet -d 'Do not print a report; only set the exit code'
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l no-store -d 'Ignore the history stored by `gpumem record --store`'
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l demo -d 'Replay the built-in recording of four GPUs'
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l framework -d 'Explain a framework; without NAME, list all known frameworks' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l at -d 'Time for --oom: 10:04, 2026-11-21 10:04:30 or -5m [default: now, or the end of the recording]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l gpu -d 'GPU for --oom, by index or UUID [default: the fullest in CUDA_VISIBLE_DEVICES]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l asked -d 'Size of the failed allocation for --oom, as given in the program\'s error message' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l window -d 'Sampling time [default: one sample; for a finding, up to 2s]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l replay -d 'Replay a recording (.jsonl, .jsonl.zst, or - for standard input)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l snippet -d 'Print Python code for your own program that releases memory when `gpumem release` asks'
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l oom -d 'After an out-of-memory error, show which processes held the fullest GPU\'s memory'
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l json -d 'Print the page as JSON (gpumem.explain/1)'
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l no-store -d 'Ignore the history stored by `gpumem record --store`'
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l demo -d 'Replay the built-in recording of four GPUs'
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l interval -d 'Time between samples [default: 1s, or as configured]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l gpu -d 'Only these GPUs, by index, UUID, UUID prefix or device file' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l user -d 'Only processes of these users, by name or uid' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l where -d 'Select rows by terms, as with / in watch: \'user:ann gpu:0 idle>10m\'' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l sort -d 'Sort the processes by this column [default: as last used, or memory]' -r -f -a "gpu\t'GPU index, UUID or its prefix, device file, MIG device (0:3) or name'
pid\t'process id, here or in its container'
user\t'the owner, by name or uid'
memory\t'GPU memory, or its share of the GPU (50%)'
memory-percent\t'its share of the GPU\'s memory'
history\t'memory over time'
sm\t'SM utilization, in percent'
cpu\t'CPU utilization, in percent of a core'
host-memory\t'host memory'
state\t'process state, by name or letter'
idle\t'time since it last used the GPU'
runtime\t'time since start'
framework\t'the framework'
where\t'container, pod, job or unit'
finding\t'kind of finding; any matches all kinds'
command\t'the command line'"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l columns -d 'Columns of the table, from left to right, in this session [default: as chosen with F2, or all]' -r -f -a "gpu\t'GPU index, UUID or its prefix, device file, MIG device (0:3) or name'
pid\t'process id, here or in its container'
user\t'the owner, by name or uid'
memory\t'GPU memory, or its share of the GPU (50%)'
memory-percent\t'its share of the GPU\'s memory'
history\t'memory over time'
sm\t'SM utilization, in percent'
cpu\t'CPU utilization, in percent of a core'
host-memory\t'host memory'
state\t'process state, by name or letter'
idle\t'time since it last used the GPU'
runtime\t'time since start'
framework\t'the framework'
where\t'container, pod, job or unit'
finding\t'kind of finding; any matches all kinds'
command\t'the command line'"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l speed -d 'Speed of a recording, as a multiple of real time' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l theme -d 'Colour theme [default: auto]' -r -f -a "auto\t'`light` if the terminal or COLORFGBG reports a light background, otherwise `terminal`'
terminal\t'Colours of the terminal, for a dark background'
light\t'Colours of the terminal that are readable on a light background'
colour-blind\t'Cyan, yellow and light red, suitable for red-green colour blindness'"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l once -d 'Print one picture to standard output and exit' -r -f -a "text\t'Text, with colours on a terminal and with --color always'
svg\t'An SVG document, in colour unless --color never is given'"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l size -d 'Size of the picture [default: size of the terminal, COLUMNS and LINES, or 80x24]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l keys -d 'Keys to press before the picture is taken, such as `jj<Enter>` or `?<PgDn>`; write < as `<lt>`' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l replay -d 'Replay a recording (.jsonl, .jsonl.zst, or - for standard input)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l host -d 'Query these machines over ssh instead of this one (HOST or USER@HOST, n[01-64], separated by commas)' -r -f -a "(__fish_print_hostnames)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l hosts -d 'Query the machines listed in this file, one per line' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l host-command -d 'Command that runs gpumem on these machines, such as `sudo -n gpumem`' -r -f -a "(__fish_complete_command)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l ascii -d 'Draw in ASCII [default: on the Linux console, or if the locale is not UTF-8]'
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l no-mouse -d 'Leave the mouse to the terminal, for selecting text'
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l no-store -d 'Ignore the history stored by `gpumem record --store`'
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l demo -d 'Replay the built-in recording of four GPUs'
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l pid -d 'Target these processes, with or without findings' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l gpu -d 'Only these GPUs, by index, UUID, UUID prefix or device file' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l user -d 'Only processes of these users, by name or uid' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l where -d 'Select rows by terms, as with / in watch: \'user:ann gpu:0 idle>10m\'' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l kind -d 'Only findings of these kinds, even if disabled [default: orphan, stopped, idle]' -r -f -a "dead\t''
stuck\t''
orphan\t''
stopped\t''
hung\t''
placeholder\t''
idle\t''
leak\t''
server-idle\t''
reserved\t''
unattributed\t''
pressure\t''"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l signal -d 'First signal instead of TERM: INT, HUP, QUIT, USR1, USR2 or KILL' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l grace -d 'How long to wait between signals [default: 30s, or 35s for a distributed launcher]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l store-age -d 'Remove recordings older than this from the store' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l store-size -d 'Remove the oldest recordings when the store exceeds this size' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l serve -d 'Also serve metrics on this address, as `gpumem serve --listen` does [default: as configured, with --store]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l window -d 'Sampling time before the plan [default: 30s; 2s for named targets or with a stored history]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l replay -d 'Replay a recording (.jsonl, .jsonl.zst, or - for standard input)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -s y -l yes -d 'Carry out the plan without asking'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -s n -l dry-run -d 'Print the plan without asking'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l direct -d 'Also signal processes owned by a scheduler, service manager or container runtime'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l all-users -d 'Include other users\' processes'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l graphics -d 'Include graphics-only processes'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l kept -d 'Include named processes that GPUMEM_KEEP or the configuration protects'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l servers -d 'Include inference servers'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l json -d 'Print the plan and its outcome as JSON (gpumem.reap/1) without asking'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l history -d 'Show past actions from the audit log (with --json, as gpumem.history/1)'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l watch -d 'Run as a daemon: notify owners, and carry out the actions of rules'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l no-store -d 'Ignore the history stored by `gpumem record --store`'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l demo -d 'Replay the built-in recording of four GPUs'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l store -d 'Store the recording in a directory of limited size, for use by check and watch'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l where -d 'Select rows by terms, as with / in watch: \'user:ann gpu:0 idle>10m\'' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l signal -d 'First signal instead of TERM: INT, HUP, QUIT, USR1, USR2 or KILL' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l grace -d 'How long to wait between signals [default: 30s, or 35s for a distributed launcher]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -s y -l yes -d 'Carry out the plan without asking'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -s n -l dry-run -d 'Print the plan without asking'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l no-store -d 'Ignore the history stored by `gpumem record --store`'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l direct -d 'Also signal processes owned by a scheduler, service manager or container runtime'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l all-users -d 'Include other users\' processes'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l graphics -d 'Include graphics-only processes'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l kept -d 'Include named processes that GPUMEM_KEEP or the configuration protects'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l where -d 'Select rows by terms, as with / in watch: \'user:ann gpu:0 idle>10m\'' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l wait -d 'How long to wait for each process (at most 1h)' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l idle-for -d 'How long an inference server must have been idle before it is asked to unload' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -s y -l yes -d 'Carry out the plan without asking'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -s n -l dry-run -d 'Print the plan without asking'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l no-store -d 'Ignore the history stored by `gpumem record --store`'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l force -d 'Ask a server (vLLM) even if its weights may not fit into host memory'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l no-gc -d 'Do not run Python\'s garbage collector first, because it would run finalizers'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l references -d 'List the largest tensors that still hold memory, by name and size but without values'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l all-users -d 'Include other users\' processes'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l kept -d 'Include processes that GPUMEM_KEEP or the configuration protects'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l json -d 'Print the plan and its outcome as JSON (gpumem.reap/1) without asking'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand park" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand park" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand park" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand park" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand park" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand park" -l list -d 'List the parked processes, since when, how much, and whether there is room to restore them'
complete -c gpumem -n "__fish_gpumem_using_subcommand park" -s y -l yes -d 'Carry out the plan without asking'
complete -c gpumem -n "__fish_gpumem_using_subcommand park" -s n -l dry-run -d 'Print the plan without asking'
complete -c gpumem -n "__fish_gpumem_using_subcommand park" -l all-users -d 'Include other users\' processes'
complete -c gpumem -n "__fish_gpumem_using_subcommand park" -l kept -d 'Include processes that GPUMEM_KEEP or the configuration protects'
complete -c gpumem -n "__fish_gpumem_using_subcommand park" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand park" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand unpark" -l wait-free -d 'Wait until enough memory is free, at most for this time' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand unpark" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand unpark" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand unpark" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand unpark" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand unpark" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand unpark" -l watch -d 'Run until a signal, and restore each parked notebook when it runs a cell'
complete -c gpumem -n "__fish_gpumem_using_subcommand unpark" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand unpark" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l gpus -d 'Wait for this number of GPUs, and set CUDA_VISIBLE_DEVICES to them' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l gpu -d 'Wait for all of these GPUs, by index, UUID, UUID prefix or device file, and use them in this order' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l wait-free -d 'Wait until this much memory is free on each GPU, as in `check --wait-free`' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l timeout -d 'How long to wait before exiting with 1 without starting COMMAND' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l max-peak -d 'Exit with 1 if COMMAND and its descendants hold more memory than this on a GPU' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l fail-on -d 'Exit with 1 on a leak, or if memory is still held five seconds after the exit' -r -f -a "leak\t'The rule `leak` found a leak'
held\t'A process still held memory five seconds after the exit'"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l report -d 'Write a report: FILE.json (gpumem.run/1) or FILE.xml (JUnit)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l interval -d 'Maximum time between samples [default: 1s, or as configured]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l allow-others -d 'Without --wait-free, also choose GPUs in use by other users\' processes'
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l claim -d 'Reserve the GPUs against other `gpumem run`s until COMMAND exits (first come, first served)'
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l fail-on-undecided -d 'Exit with 1 if an assertion is undecided: `leak` after a short run, or any without a driver'
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l allow-no-gpu -d 'Run COMMAND even without a driver; --max-peak and --fail-on are then undecided'
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -s q -l quiet -d 'Print only errors'
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l interval -d 'Time between samples [default: 1s, 5s with --store, or as configured]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l duration -d 'Stop recording after this time' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l history -d 'First write the stored history of this length' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l store-age -d 'Remove recordings older than this from the store' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l store-size -d 'Remove the oldest recordings when the store exceeds this size' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l serve -d 'Also serve metrics on this address, as `gpumem serve --listen` does [default: as configured, with --store]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l store -d 'Store the recording in a directory of limited size, for use by check and watch'
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand metrics" -l output -d 'Write to this file atomically, for node_exporter\'s textfile collector' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand metrics" -l replay -d 'Replay a recording (.jsonl, .jsonl.zst, or - for standard input)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand metrics" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand metrics" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand metrics" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand metrics" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand metrics" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand metrics" -l demo -d 'Replay the built-in recording of four GPUs'
complete -c gpumem -n "__fish_gpumem_using_subcommand metrics" -l no-store -d 'Ignore the history stored by `gpumem record --store`'
complete -c gpumem -n "__fish_gpumem_using_subcommand metrics" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand metrics" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand serve" -l listen -d 'Address to listen on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand serve" -l interval -d 'Time between samples [default: 5s]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand serve" -l replay -d 'Replay a recording (.jsonl, .jsonl.zst, or - for standard input)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand serve" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand serve" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand serve" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand serve" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand serve" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand serve" -l demo -d 'Replay the built-in recording of four GPUs'
complete -c gpumem -n "__fish_gpumem_using_subcommand serve" -l no-store -d 'Ignore the history stored by `gpumem record --store`'
complete -c gpumem -n "__fish_gpumem_using_subcommand serve" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand serve" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand rules" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand rules" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand rules" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand rules" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand rules" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand rules" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand rules" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show check test" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show check test" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show check test" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show check test" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show check test" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show check test" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show check test" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show check test" -f -a "show" -d 'Print the current configuration as TOML, including defaults'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show check test" -f -a "check" -d 'Validate a file, or the current configuration; errors state the file, line and key'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show check test" -f -a "test" -d 'Show what each rule would have found in a recording, and when'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from show" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from show" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from show" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from show" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from show" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from show" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from check" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from check" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from check" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from check" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from check" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from check" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l replay -d 'Replay a recording (.jsonl, .jsonl.zst, or - for standard input)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l json -d 'Print the result as JSON (gpumem.test/1)'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l demo -d 'Replay the built-in recording of four GPUs'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand doctor" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand doctor" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand doctor" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand doctor" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand doctor" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand doctor" -l json -d 'Print the result as JSON (gpumem.doctor/1)'
complete -c gpumem -n "__fish_gpumem_using_subcommand doctor" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand doctor" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand schema" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand schema" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand schema" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand schema" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand schema" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand schema" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand schema" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand completions" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand completions" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand completions" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand completions" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand completions" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand completions" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand completions" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand man" -l nvml-library -d 'NVML library to load instead of the system\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand man" -l nvml-timeout -d 'How long to wait for a GPU before showing it as stale' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand man" -l config -d 'Configuration file to use (/dev/null for none)' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand man" -l color -d 'When to use colour' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand man" -l store-dir -d 'Directory of the stored history' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand man" -s h -l help -d 'Print help; for details, see `gpumem man COMMAND`'
complete -c gpumem -n "__fish_gpumem_using_subcommand man" -l utc -d 'Show times in UTC instead of local time, as JSON always does'
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -f -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -f -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -f -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand park" -f -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand unpark" -f -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand rules" -f -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand man" -f -k -a "(__fish_gpumem_values)"
