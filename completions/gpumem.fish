# Values that gpumem itself knows: processes, GPUs, users, rules, findings. What is offered is data: fish quotes
# it, and nothing of it is run.
function __fish_gpumem_values
    command gpumem complete -- (commandline -opc) (commandline -ct) 2>/dev/null
end

# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_gpumem_global_optspecs
    string join \n V/version nvml-library= nvml-timeout= config= color= utc store-dir= h/help
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

complete -c gpumem -n "__fish_gpumem_needs_command" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_needs_command" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_needs_command" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_needs_command" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_needs_command" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_needs_command" -s V -l version -d 'Print the version of gpumem, and those of NVML and the driver where there is one'
complete -c gpumem -n "__fish_gpumem_needs_command" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "ps" -d 'Show who holds GPU memory now'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "check" -d 'Check whether GPU memory is wasted; the exit code is the verdict'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "explain" -d 'Explain one process, GPU or finding: whose, since when, why, and what to do'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "watch" -d 'Watch GPUs, processes and findings live on the terminal, and free memory there'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "reap" -d 'Free GPU memory that is not needed: show a plan, kill what it names, verify that memory came back'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "kill" -d 'Kill processes of yours that hold GPU memory, and verify that the memory came back'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "release" -d 'Have processes release GPU memory that they do not need, without killing them, and verify that it was freed'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "run" -d 'Run a command, and report what it used of the GPUs, whether it leaked, and what it left behind'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "record" -d 'Record what is observed, one JSON snapshot per line'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "rules" -d 'List the rules: what each finds, its settings, their values and what they mean'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "config" -d 'Show, validate or test the configuration'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "doctor" -d 'Show what works on this machine, what does not, and what to do about it'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "schema" -d 'Print the JSON Schema of what gpumem writes'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "completions" -d 'Print the completion script of a shell'
complete -c gpumem -n "__fish_gpumem_needs_command" -f -a "man" -d 'Show a manual page; where standard output is no terminal, print it as roff'
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l gpu -d 'Only these GPUs, by index or UUID (or its beginning)' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l user -d 'Only processes of these users, by name or uid' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l where -d 'Only what fits all of these terms: \'user:ann gpu:0 idle>10m mem>4GiB\', as after / in watch' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l sort -d 'Order of the processes' -r -f -a "gpu\t'GPU, then GPU memory'
pid\t'Process id'
user\t'Owner'
memory\t'GPU memory, the largest first'
sm\t'SM utilization, the highest first'
cpu-time\t'Total CPU time, the longest first'
host-memory\t'Resident host memory, the largest first'
runtime\t'Time since start, the longest first'
command\t'Command line'"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l by -d 'Add up instead: memory, processes and GPUs of each user, job, container or framework, the most memory first' -r -f -a "user\t''
job\t''
container\t''
framework\t''"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l replay -d 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l json -d 'Print the snapshot as JSON'
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l no-store -d 'Do not use the history that `gpumem record --store` keeps'
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l demo -d 'Use the built-in recording: four GPUs, training, an idle notebook, a leak, an orphan'
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand ps" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l format -d 'How the verdict is printed [default: text]' -r -f -a "text\t'For people'
json\t'gpumem.check/1'
junit\t'JUnit XML: a test for each rule, limit, wait and baseline'
github\t'Annotations of a job of GitHub Actions'"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l window -d 'How long to sample this machine [default: 30s, or 2s while `gpumem record --store` runs; a single sample with --max-used, --max-unattributed or --baseline]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l interval -d 'Time between samples [default: 1s, or the configuration\'s]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l fail-on -d 'Exit with 1 if there is a finding of this severity or higher [default: warning; with --wait-free none]' -r -f -a "info\t'Anything found'
warning\t'Memory is wasted'
critical\t'Work is in danger'"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l kind -d 'Apply only rules of these kinds, also where they are switched off' -r -f -a "dead\t''
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
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l gpu -d 'Report only on these GPUs (index, UUID or its beginning); ignore read errors on others' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l user -d 'Report only on processes of these users, by name or uid' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l where -d 'Only what fits all of these terms: \'user:ann gpu:0 idle>10m mem>4GiB\', as after / in watch' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l max-used -d 'Fail where a GPU uses more than this at the end' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l max-unattributed -d 'Fail where more than this is used by no process that NVML lists, at the end' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l wait-free -d 'Wait until this much memory is free on that GPU, or on any one (of --gpu); then exit with 0' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l print -d 'Print only the GPUs that --wait-free found, with commas between them, as CUDA_VISIBLE_DEVICES takes them' -r -f -a "uuid\t'By its UUID'
index\t'By NVML\'s index, which is CUDA\'s only where CUDA_DEVICE_ORDER is PCI_BUS_ID'"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l timeout -d 'How long --wait-free waits; then exit with 1' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l baseline -d 'Fail where a process holds memory on a GPU on which it held none in FILE, which `gpumem ps --json` printed' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l replay -d 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l json -d 'Print the verdict as JSON (gpumem.check/1): one document, also where the check fails; the short form of --format json'
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -s v -l verbose -d 'With --wait-free, list what rules find when it is free, and what they have not decided, too'
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -s q -l quiet -d 'Print no report: the exit code is the answer'
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l no-store -d 'Do not use the history that `gpumem record --store` keeps'
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l demo -d 'Use the built-in recording: four GPUs, training, an idle notebook, a leak, an orphan'
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l framework -d 'Explain a framework; without NAME, list those that are known' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l at -d 'With --oom, when that was: 10:04, 2026-11-21 10:04:30 or, on this machine, -5m [default: now, or the recording\'s end]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l gpu -d 'With --oom, the GPU, by index or UUID [default: the one with the least memory free]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l asked -d 'With --oom, how much was asked for, as the program\'s message says' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l window -d 'How long to sample this machine first; use of CPU and GPU over time is known only with a window or a stored history [default: a single sample; for a finding until it is found, 2s at most]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l replay -d 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l snippet -d 'Print a signal handler in Python, to paste into a program, by which it gives cached memory back when `gpumem release` asks; for PyTorch, TensorFlow, JAX and CuPy. With --framework tensorflow: training in a child process that saves and ends when asked, as TensorFlow\'s own pool is returned with its process only'
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l oom -d 'Explain why a GPU had no memory left: who held it, which of it was unused, and what would have sufficed'
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l json -d 'Print the page as JSON (gpumem.explain/1)'
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l no-store -d 'Do not use the history that `gpumem record --store` keeps'
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l demo -d 'Use the built-in recording: four GPUs, training, an idle notebook, a leak, an orphan'
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l interval -d 'Time between samples [default: 1s, or the configuration\'s]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l gpu -d 'Start with these GPUs alone and the processes on them, by index or UUID (or its beginning); / changes it' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l user -d 'Start with the processes of these users, by name or uid; / changes it' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l where -d 'Only what fits all of these terms: \'user:ann gpu:0 idle>10m mem>4GiB\', as after / in watch' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l sort -d 'Order of the processes; r reverses it, o changes it [default: as it was left, or memory]' -r -f -a "gpu\t'the GPU\'s index, UUID (or its beginning), part (0:3) or name'
pid\t'the process id, here or in its container'
user\t'the owner, by name or uid'
memory\t'memory on the GPU, or its share (50%)'
memory-percent\t'its share of the GPU\'s memory'
history\t'how its memory moved'
sm\t'use of the GPU, in percent'
cpu\t'use of the CPU, in percent'
host-memory\t'host memory'
state\t'its state, as the kernel\'s scheduler has it'
idle\t'how long it has been idle'
runtime\t'how long it has run'
framework\t'what it computes with'
where\t'the container, pod, job or unit, as shown'
finding\t'what the rules found; any: anything'
command\t'the command line'"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l columns -d 'The table\'s columns, from left to right, for this session [default: as F2 left them, or all]' -r -f -a "gpu\t'the GPU\'s index, UUID (or its beginning), part (0:3) or name'
pid\t'the process id, here or in its container'
user\t'the owner, by name or uid'
memory\t'memory on the GPU, or its share (50%)'
memory-percent\t'its share of the GPU\'s memory'
history\t'how its memory moved'
sm\t'use of the GPU, in percent'
cpu\t'use of the CPU, in percent'
host-memory\t'host memory'
state\t'its state, as the kernel\'s scheduler has it'
idle\t'how long it has been idle'
runtime\t'how long it has run'
framework\t'what it computes with'
where\t'the container, pod, job or unit, as shown'
finding\t'what the rules found; any: anything'
command\t'the command line'"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l speed -d 'How fast a recording plays, as a multiple of real time' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l theme -d 'The colours [default: auto]' -r -f -a "auto\t'Light if COLORFGBG names a light background, else the terminal\'s'
terminal\t'The terminal\'s own colours, as most programs use them'
light\t'Those of the terminal\'s colours that are readable on a light ground'
colour-blind\t'Cyan, yellow and light red: safe for red-green colour blindness'"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l once -d 'Print one picture to standard output, and exit' -r -f -a "text\t'Lines of text, with colours on a terminal and with --color always'
svg\t'An SVG document, in colour but for --color never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l size -d 'The picture\'s columns and rows [default: the terminal\'s, or COLUMNS and LINES, or 80x24]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l keys -d 'Keys that are pressed before the picture is taken: `jj<Enter>`, `?<PgDn>`; `<lt>` is <' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l replay -d 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l ascii -d 'Draw with ASCII only [default: where the locale is not UTF-8, and on Linux\'s console]'
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l no-mouse -d 'Leave the mouse to the terminal, so that it selects text'
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l no-store -d 'Do not use the history that `gpumem record --store` keeps'
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l demo -d 'Use the built-in recording: four GPUs, training, an idle notebook, a leak, an orphan'
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand watch" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l pid -d 'Target these processes, with or without a finding' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l notebook -d 'Target the kernels of these notebooks, by path or the end of it, with or without a finding' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l kernel -d 'Target these notebook kernels, by id, with or without a finding' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l gpu -d 'Only processes that hold memory on these GPUs, by index or UUID (or its beginning)' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l user -d 'Only processes of these users, by name or uid; other users\' need --all-users' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l where -d 'Only what fits all of these terms: \'user:ann gpu:0 idle>10m mem>4GiB\', as after / in watch' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l kind -d 'Only findings of these kinds, also of rules that are switched off [default: orphan, stopped, idle]' -r -f -a "dead\t''
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
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l signal -d 'The first signal, instead of TERM: INT, HUP, QUIT, USR1, USR2 or KILL' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l grace -d 'How long each signal may take before the next one, instead of the default: 30s, 35s for the launcher of a distributed run' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l window -d 'How long to sample this machine before the plan [default: 30s, or 2s while `gpumem record --store` runs, or if processes are named]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l replay -d 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -s y -l yes -d 'Carry the plan out without asking'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -s n -l dry-run -d 'Print the plan and do not ask'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l direct -d 'Signal also what a scheduler, a service manager or a container runtime owns, instead of printing what to type'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l all-users -d 'Include other users\' processes'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l graphics -d 'Include graphics-only processes'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l kept -d 'Include what GPUMEM_KEEP or the configuration keeps, where it is named'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l servers -d 'Include inference servers'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l json -d 'Print the plan and its outcome as one JSON document (gpumem.reap/1); does not ask'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l history -d 'Show what was done, from the audit log; with --json as gpumem.history/1'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l watch -d 'Run as a daemon: notify owners of findings, and terminate processes found by rules with action = "reap" after warning their owners'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l no-store -d 'Do not use the history that `gpumem record --store` keeps'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l demo -d 'Use the built-in recording: four GPUs, training, an idle notebook, a leak, an orphan'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand reap" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l where -d 'Only what fits all of these terms: \'user:ann gpu:0 idle>10m mem>4GiB\', as after / in watch' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l signal -d 'The first signal, instead of TERM: INT, HUP, QUIT, USR1, USR2 or KILL' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l grace -d 'How long each signal may take before the next one, instead of the default: 30s, 35s for the launcher of a distributed run' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -s y -l yes -d 'Do not ask'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -s n -l dry-run -d 'Print the plan and do not ask'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l direct -d 'Signal also what a scheduler, a service manager or a container runtime owns, instead of printing what to type'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l all-users -d 'Include other users\' processes'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l graphics -d 'Include graphics-only processes'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l kept -d 'Include what GPUMEM_KEEP or the configuration keeps, where it is named'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l no-store -d 'Do not use the history that `gpumem record --store` keeps'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l where -d 'Only what fits all of these terms: \'user:ann gpu:0 idle>10m mem>4GiB\', as after / in watch' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l wait -d 'How long each process may take' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l idle-for -d 'How long an inference server must be seen to do no request before it is asked to unload' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -s y -l yes -d 'Do not ask'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -s n -l dry-run -d 'Print the plan and do not ask'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l force -d 'Ask a server also where that ends requests (TorchServe), or host memory may not hold its weights (vLLM)'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l no-gc -d 'Do not run Python\'s garbage collector first (it runs finalizers of the program\'s objects)'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l references -d 'List what still holds memory: the largest tensors by name and size, never their values'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l all-users -d 'Include other users\' processes'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l kept -d 'Include what GPUMEM_KEEP or the configuration keeps'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l json -d 'Print the plan and its outcome as one JSON document (gpumem.release/1); does not ask for confirmation'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l no-store -d 'Do not use the history that `gpumem record --store` keeps'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l gpus -d 'Wait for this many GPUs, the freest first, and show COMMAND only these (CUDA_VISIBLE_DEVICES)' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l gpu -d 'Wait for these GPUs, all of them (index, UUID or its beginning)' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l wait-free -d 'A GPU is free with so much free memory, as `check --wait-free` has it' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l timeout -d 'How long to wait; then exit with 1, and COMMAND is not started' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l max-peak -d 'Exit with 1 where COMMAND and its descendants held more than this on a GPU' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l fail-on -d 'Exit with 1 where memory was found to leak, or is still held five seconds after the end' -r -f -a "leak\t'Memory of a process grew throughout, by the rule `leak`'
held\t'Something still held memory five seconds after the end'"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l report -d 'Write a report, by the file\'s ending: .json (gpumem.run/1), .xml (JUnit) or .md; the file $GITHUB_STEP_SUMMARY is appended to' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l interval -d 'The longest time between samples; it begins with 50ms, for short commands [default: 1s, or the configuration\'s]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l claim -d 'Claim the GPUs, so that no other `gpumem run` takes them until COMMAND has ended; first come, first served'
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l allow-no-gpu -d 'Run COMMAND also where there is no driver, and say so'
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -s q -l quiet -d 'Print nothing but errors'
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l interval -d 'Time between samples [default: 1s, 5s with --store, or the configuration\'s]' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l duration -d 'Stop after this long' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l max-size -d 'Start a new file when this one would grow larger; FILE becomes FILE.1, FILE.1 FILE.2' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l keep -d 'How many full files to keep' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l store-age -d 'Remove from the store what is older' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l store-size -d 'Remove the oldest from the store where it would grow larger' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l store -d 'Keep a ring of recordings in a directory, for check and watch'
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand record" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand rules" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand rules" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand rules" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand rules" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand rules" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand rules" -l json -d 'Print them as JSON (gpumem.rules/1)'
complete -c gpumem -n "__fish_gpumem_using_subcommand rules" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand rules" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show path check test" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show path check test" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show path check test" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show path check test" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show path check test" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show path check test" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show path check test" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show path check test" -f -a "show" -d 'Print the configuration in force, defaults included, as TOML'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show path check test" -f -a "path" -d 'Print the paths of the configuration files, and which of them exist'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show path check test" -f -a "check" -d 'Validate a file, or the configuration in force: an error names file, line and key'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and not __fish_seen_subcommand_from show path check test" -f -a "test" -d 'Show what each rule would have found in a recording, and when'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from show" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from show" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from show" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from show" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from show" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from show" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from path" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from path" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from path" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from path" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from path" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from path" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from path" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from check" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from check" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from check" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from check" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from check" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from check" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l replay -d 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l json -d 'Print it as JSON (gpumem.test/1)'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l demo -d 'Use the built-in recording: four GPUs, training, an idle notebook, a leak, an orphan'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand config; and __fish_seen_subcommand_from test" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand doctor" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand doctor" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand doctor" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand doctor" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand doctor" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand doctor" -l json -d 'Print it as JSON (gpumem.doctor/1)'
complete -c gpumem -n "__fish_gpumem_using_subcommand doctor" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand schema" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand schema" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand schema" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand schema" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand schema" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand schema" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand schema" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand completions" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand completions" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand completions" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand completions" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand completions" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand completions" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand completions" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand man" -l nvml-library -d 'The NVML library to load, instead of the loader\'s libnvidia-ml.so.1' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand man" -l nvml-timeout -d 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on' -x -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand man" -l config -d 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml; /dev/null is none' -r -F
complete -c gpumem -n "__fish_gpumem_using_subcommand man" -l color -d 'When to use colour; NO_COLOR is honoured' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set or TERM is dumb'
always\t'Always'
never\t'Never'"
complete -c gpumem -n "__fish_gpumem_using_subcommand man" -l store-dir -d 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store' -r -f -a "(__fish_complete_directories)"
complete -c gpumem -n "__fish_gpumem_using_subcommand man" -l utc -d 'Show times in UTC instead of this machine\'s time zone; JSON always is in UTC'
complete -c gpumem -n "__fish_gpumem_using_subcommand man" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpumem -n "__fish_gpumem_using_subcommand explain" -f -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand kill" -f -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand release" -f -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand rules" -f -k -a "(__fish_gpumem_values)"
complete -c gpumem -n "__fish_gpumem_using_subcommand man" -f -k -a "(__fish_gpumem_values)"
