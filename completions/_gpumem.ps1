
using namespace System.Management.Automation
using namespace System.Management.Automation.Language

Register-ArgumentCompleter -Native -CommandName 'gpumem' -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)

    $commandElements = $commandAst.CommandElements
    $command = @(
        'gpumem'
        for ($i = 1; $i -lt $commandElements.Count; $i++) {
            $element = $commandElements[$i]
            if ($element -isnot [StringConstantExpressionAst] -or
                $element.StringConstantType -ne [StringConstantType]::BareWord -or
                $element.Value.StartsWith('-') -or
                $element.Value -eq $wordToComplete) {
                break
        }
        $element.Value
    }) -join ';'

    $completions = @(switch ($command) {
        'gpumem' {
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print the version of gpumem, and those of NVML and the driver where there is one')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print the version of gpumem, and those of NVML and the driver where there is one')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('ps', 'ps', [CompletionResultType]::ParameterValue, 'Show who holds GPU memory now')
            [CompletionResult]::new('check', 'check', [CompletionResultType]::ParameterValue, 'Check whether GPU memory is wasted; the exit code is the verdict')
            [CompletionResult]::new('explain', 'explain', [CompletionResultType]::ParameterValue, 'Explain one process, GPU or finding: whose, since when, why, and what to do')
            [CompletionResult]::new('watch', 'watch', [CompletionResultType]::ParameterValue, 'Watch GPUs, processes and findings live on the terminal, and free memory there')
            [CompletionResult]::new('reap', 'reap', [CompletionResultType]::ParameterValue, 'Free GPU memory that is not needed: show a plan, kill what it names, verify that memory came back')
            [CompletionResult]::new('kill', 'kill', [CompletionResultType]::ParameterValue, 'Kill processes of yours that hold GPU memory, and verify that the memory came back')
            [CompletionResult]::new('release', 'release', [CompletionResultType]::ParameterValue, 'Have processes release GPU memory that they do not need, without killing them, and verify that it was freed')
            [CompletionResult]::new('record', 'record', [CompletionResultType]::ParameterValue, 'Record what is observed, one JSON snapshot per line')
            [CompletionResult]::new('rules', 'rules', [CompletionResultType]::ParameterValue, 'List the rules: what each finds, its settings, their values and what they mean')
            [CompletionResult]::new('config', 'config', [CompletionResultType]::ParameterValue, 'Show, validate or test the configuration')
            [CompletionResult]::new('doctor', 'doctor', [CompletionResultType]::ParameterValue, 'Show what works on this machine, what does not, and what to do about it')
            [CompletionResult]::new('schema', 'schema', [CompletionResultType]::ParameterValue, 'Print the JSON Schema of what gpumem writes')
            [CompletionResult]::new('completions', 'completions', [CompletionResultType]::ParameterValue, 'Print the completion script of a shell')
            [CompletionResult]::new('man', 'man', [CompletionResultType]::ParameterValue, 'Print a manual page')
            break
        }
        'gpumem;ps' {
            [CompletionResult]::new('--gpu', '--gpu', [CompletionResultType]::ParameterName, 'Only these GPUs, by index or UUID (or its beginning)')
            [CompletionResult]::new('--user', '--user', [CompletionResultType]::ParameterName, 'Only processes of these users, by name or uid')
            [CompletionResult]::new('--where', '--where', [CompletionResultType]::ParameterName, 'Only what fits all of these terms: ''user:ann gpu:0 idle>10m mem>4GiB'', as after / in watch')
            [CompletionResult]::new('--sort', '--sort', [CompletionResultType]::ParameterName, 'Order of the processes')
            [CompletionResult]::new('--by', '--by', [CompletionResultType]::ParameterName, 'Add up instead: memory, processes and GPUs of each user, job, container or framework, the most memory first')
            [CompletionResult]::new('--replay', '--replay', [CompletionResultType]::ParameterName, 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine')
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the snapshot as JSON')
            [CompletionResult]::new('--demo', '--demo', [CompletionResultType]::ParameterName, 'Use the built-in recording: four GPUs, training, an idle notebook, a leak, an orphan')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'gpumem;check' {
            [CompletionResult]::new('--window', '--window', [CompletionResultType]::ParameterName, 'How long to sample this machine [default: 30s, or 2s where the stored history reaches far enough back for every rule; a single sample with --max-used or --max-unattributed]')
            [CompletionResult]::new('--interval', '--interval', [CompletionResultType]::ParameterName, 'Time between samples [default: 1s, or the configuration''s]')
            [CompletionResult]::new('--fail-on', '--fail-on', [CompletionResultType]::ParameterName, 'Exit with 1 if there is a finding of this severity or higher [default: warning; with --wait-free none]')
            [CompletionResult]::new('--rule', '--rule', [CompletionResultType]::ParameterName, 'Apply only these rules, also where they are switched off')
            [CompletionResult]::new('--kind', '--kind', [CompletionResultType]::ParameterName, 'Apply only rules of these kinds, also where they are switched off')
            [CompletionResult]::new('--gpu', '--gpu', [CompletionResultType]::ParameterName, 'Report only on these GPUs (index, UUID or its beginning); ignore read errors on others')
            [CompletionResult]::new('--user', '--user', [CompletionResultType]::ParameterName, 'Report only on processes of these users, by name or uid')
            [CompletionResult]::new('--where', '--where', [CompletionResultType]::ParameterName, 'Only what fits all of these terms: ''user:ann gpu:0 idle>10m mem>4GiB'', as after / in watch')
            [CompletionResult]::new('--max-used', '--max-used', [CompletionResultType]::ParameterName, 'Fail where a GPU uses more than this at the end')
            [CompletionResult]::new('--max-unattributed', '--max-unattributed', [CompletionResultType]::ParameterName, 'Fail where more than this is used by no process that NVML lists, at the end')
            [CompletionResult]::new('--wait-free', '--wait-free', [CompletionResultType]::ParameterName, 'Wait until this much memory is free on that GPU, or on any one (of --gpu); then exit with 0')
            [CompletionResult]::new('--timeout', '--timeout', [CompletionResultType]::ParameterName, 'How long --wait-free waits; then exit with 1')
            [CompletionResult]::new('--replay', '--replay', [CompletionResultType]::ParameterName, 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine')
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the verdict as JSON (gpumem.check/1): one document, also where the check fails')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print nothing: the exit code is the answer')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print nothing: the exit code is the answer')
            [CompletionResult]::new('--no-store', '--no-store', [CompletionResultType]::ParameterName, 'Do not use the history that `gpumem record --store` keeps')
            [CompletionResult]::new('--demo', '--demo', [CompletionResultType]::ParameterName, 'Use the built-in recording: four GPUs, training, an idle notebook, a leak, an orphan')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'gpumem;explain' {
            [CompletionResult]::new('--framework', '--framework', [CompletionResultType]::ParameterName, 'Explain a framework; without NAME, list those that are known')
            [CompletionResult]::new('--window', '--window', [CompletionResultType]::ParameterName, 'How long to sample this machine first; use of CPU and GPU over time is known only with a window or a stored history [default: a single sample; for a finding until it is found, 2s at most]')
            [CompletionResult]::new('--replay', '--replay', [CompletionResultType]::ParameterName, 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine')
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('--snippet', '--snippet', [CompletionResultType]::ParameterName, 'Print a signal handler in Python, to paste into a program, by which it gives cached memory back when `gpumem release` asks; for the framework of PID, for that of --framework, or for all that have one')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the page as JSON (gpumem.explain/1)')
            [CompletionResult]::new('--no-store', '--no-store', [CompletionResultType]::ParameterName, 'Do not use the history that `gpumem record --store` keeps')
            [CompletionResult]::new('--demo', '--demo', [CompletionResultType]::ParameterName, 'Use the built-in recording: four GPUs, training, an idle notebook, a leak, an orphan')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'gpumem;watch' {
            [CompletionResult]::new('--interval', '--interval', [CompletionResultType]::ParameterName, 'Time between samples [default: 1s, or the configuration''s]')
            [CompletionResult]::new('--gpu', '--gpu', [CompletionResultType]::ParameterName, 'Start with these GPUs alone and the processes on them, by index or UUID (or its beginning); / changes it')
            [CompletionResult]::new('--user', '--user', [CompletionResultType]::ParameterName, 'Start with the processes of these users, by name or uid; / changes it')
            [CompletionResult]::new('--where', '--where', [CompletionResultType]::ParameterName, 'Only what fits all of these terms: ''user:ann gpu:0 idle>10m mem>4GiB'', as after / in watch')
            [CompletionResult]::new('--sort', '--sort', [CompletionResultType]::ParameterName, 'Order of the processes; r reverses it, o changes it [default: as it was left, or memory]')
            [CompletionResult]::new('--columns', '--columns', [CompletionResultType]::ParameterName, 'The table''s columns, from left to right, for this session [default: as F2 left them, or all]')
            [CompletionResult]::new('--speed', '--speed', [CompletionResultType]::ParameterName, 'How fast a recording plays, as a multiple of real time')
            [CompletionResult]::new('--theme', '--theme', [CompletionResultType]::ParameterName, 'The colours [default: auto]')
            [CompletionResult]::new('--once', '--once', [CompletionResultType]::ParameterName, 'Print one picture to standard output, and exit')
            [CompletionResult]::new('--size', '--size', [CompletionResultType]::ParameterName, 'The picture''s columns and rows [default: the terminal''s, or COLUMNS and LINES, or 80x24]')
            [CompletionResult]::new('--keys', '--keys', [CompletionResultType]::ParameterName, 'Keys that are pressed before the picture is taken: `jj<Enter>`, `?<PgDn>`; `<lt>` is <')
            [CompletionResult]::new('--replay', '--replay', [CompletionResultType]::ParameterName, 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine')
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('--ascii', '--ascii', [CompletionResultType]::ParameterName, 'Draw with ASCII only [default: where the locale is not UTF-8]')
            [CompletionResult]::new('--no-mouse', '--no-mouse', [CompletionResultType]::ParameterName, 'Leave the mouse to the terminal, so that it selects text')
            [CompletionResult]::new('--no-store', '--no-store', [CompletionResultType]::ParameterName, 'Do not use the history that `gpumem record --store` keeps')
            [CompletionResult]::new('--demo', '--demo', [CompletionResultType]::ParameterName, 'Use the built-in recording: four GPUs, training, an idle notebook, a leak, an orphan')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'gpumem;reap' {
            [CompletionResult]::new('--pid', '--pid', [CompletionResultType]::ParameterName, 'Target these processes, with or without a finding')
            [CompletionResult]::new('--notebook', '--notebook', [CompletionResultType]::ParameterName, 'Target the kernels of these notebooks, by path or the end of it, with or without a finding')
            [CompletionResult]::new('--kernel', '--kernel', [CompletionResultType]::ParameterName, 'Target these notebook kernels, by id, with or without a finding')
            [CompletionResult]::new('--gpu', '--gpu', [CompletionResultType]::ParameterName, 'Only processes that hold memory on these GPUs, by index or UUID (or its beginning)')
            [CompletionResult]::new('--user', '--user', [CompletionResultType]::ParameterName, 'Only processes of these users, by name or uid; other users'' need --all-users')
            [CompletionResult]::new('--where', '--where', [CompletionResultType]::ParameterName, 'Only what fits all of these terms: ''user:ann gpu:0 idle>10m mem>4GiB'', as after / in watch')
            [CompletionResult]::new('--kind', '--kind', [CompletionResultType]::ParameterName, 'Only findings of these kinds, also of rules that are switched off [default: orphan, stopped, idle]')
            [CompletionResult]::new('--rule', '--rule', [CompletionResultType]::ParameterName, 'Only findings of these rules, also where they are switched off')
            [CompletionResult]::new('--older-than', '--older-than', [CompletionResultType]::ParameterName, 'Only findings at least this old; of processes that are named, those that have run at least this long')
            [CompletionResult]::new('--min', '--min', [CompletionResultType]::ParameterName, 'Only targets that would free at least this much')
            [CompletionResult]::new('--signal', '--signal', [CompletionResultType]::ParameterName, 'The first signal, instead of TERM: INT, HUP, QUIT, USR1, USR2 or KILL')
            [CompletionResult]::new('--grace', '--grace', [CompletionResultType]::ParameterName, 'How long each signal may take before the next one, instead of the default: 10s, 35s for the launcher of a distributed run')
            [CompletionResult]::new('--window', '--window', [CompletionResultType]::ParameterName, 'How long to sample this machine before the plan [default: 30s, or 2s where the stored history reaches far enough back for every rule, or if processes are named]')
            [CompletionResult]::new('--replay', '--replay', [CompletionResultType]::ParameterName, 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine')
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('-y', '-y', [CompletionResultType]::ParameterName, 'Carry the plan out without asking')
            [CompletionResult]::new('--yes', '--yes', [CompletionResultType]::ParameterName, 'Carry the plan out without asking')
            [CompletionResult]::new('-n', '-n', [CompletionResultType]::ParameterName, 'Print the plan and do not ask')
            [CompletionResult]::new('--dry-run', '--dry-run', [CompletionResultType]::ParameterName, 'Print the plan and do not ask')
            [CompletionResult]::new('--direct', '--direct', [CompletionResultType]::ParameterName, 'Signal also what a scheduler, a service manager or a container runtime owns, instead of printing what to type')
            [CompletionResult]::new('--all-users', '--all-users', [CompletionResultType]::ParameterName, 'Include other users'' processes')
            [CompletionResult]::new('--graphics', '--graphics', [CompletionResultType]::ParameterName, 'Include graphics-only processes')
            [CompletionResult]::new('--servers', '--servers', [CompletionResultType]::ParameterName, 'Include inference servers')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the plan and its outcome as one JSON document (gpumem.reap/1); does not ask')
            [CompletionResult]::new('--history', '--history', [CompletionResultType]::ParameterName, 'Show what was done, from the audit log; with --json as gpumem.history/1')
            [CompletionResult]::new('--watch', '--watch', [CompletionResultType]::ParameterName, 'Run as a daemon: notify owners of findings, and terminate processes found by rules with action = "reap" after warning their owners')
            [CompletionResult]::new('--no-store', '--no-store', [CompletionResultType]::ParameterName, 'Do not use the history that `gpumem record --store` keeps')
            [CompletionResult]::new('--demo', '--demo', [CompletionResultType]::ParameterName, 'Use the built-in recording: four GPUs, training, an idle notebook, a leak, an orphan')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'gpumem;kill' {
            [CompletionResult]::new('--where', '--where', [CompletionResultType]::ParameterName, 'Only what fits all of these terms: ''user:ann gpu:0 idle>10m mem>4GiB'', as after / in watch')
            [CompletionResult]::new('--signal', '--signal', [CompletionResultType]::ParameterName, 'The first signal, instead of TERM: INT, HUP, QUIT, USR1, USR2 or KILL')
            [CompletionResult]::new('--grace', '--grace', [CompletionResultType]::ParameterName, 'How long each signal may take before the next one, instead of the default')
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('-y', '-y', [CompletionResultType]::ParameterName, 'Do not ask')
            [CompletionResult]::new('--yes', '--yes', [CompletionResultType]::ParameterName, 'Do not ask')
            [CompletionResult]::new('--direct', '--direct', [CompletionResultType]::ParameterName, 'Signal also what a scheduler, a service manager or a container runtime owns, instead of printing what to type')
            [CompletionResult]::new('--all-users', '--all-users', [CompletionResultType]::ParameterName, 'Include other users'' processes')
            [CompletionResult]::new('--graphics', '--graphics', [CompletionResultType]::ParameterName, 'Include graphics-only processes')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'gpumem;release' {
            [CompletionResult]::new('--where', '--where', [CompletionResultType]::ParameterName, 'Only what fits all of these terms: ''user:ann gpu:0 idle>10m mem>4GiB'', as after / in watch')
            [CompletionResult]::new('--wait', '--wait', [CompletionResultType]::ParameterName, 'How long each process may take')
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('-y', '-y', [CompletionResultType]::ParameterName, 'Do not ask')
            [CompletionResult]::new('--yes', '--yes', [CompletionResultType]::ParameterName, 'Do not ask')
            [CompletionResult]::new('-n', '-n', [CompletionResultType]::ParameterName, 'Print the plan and do not ask')
            [CompletionResult]::new('--dry-run', '--dry-run', [CompletionResultType]::ParameterName, 'Print the plan and do not ask')
            [CompletionResult]::new('--no-gc', '--no-gc', [CompletionResultType]::ParameterName, 'Do not run Python''s garbage collector first (it runs finalizers of the program''s objects)')
            [CompletionResult]::new('--references', '--references', [CompletionResultType]::ParameterName, 'List what still holds memory: the largest tensors by name and size, never their values')
            [CompletionResult]::new('--all-users', '--all-users', [CompletionResultType]::ParameterName, 'Include other users'' processes')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print the plan and its outcome as one JSON document (gpumem.release/1); does not ask for confirmation')
            [CompletionResult]::new('--no-store', '--no-store', [CompletionResultType]::ParameterName, 'Do not use the history that `gpumem record --store` keeps')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'gpumem;record' {
            [CompletionResult]::new('--interval', '--interval', [CompletionResultType]::ParameterName, 'Time between samples [default: 1s, 5s with --store, or the configuration''s]')
            [CompletionResult]::new('--duration', '--duration', [CompletionResultType]::ParameterName, 'Stop after this long')
            [CompletionResult]::new('--max-size', '--max-size', [CompletionResultType]::ParameterName, 'Start a new file when this one would grow larger; FILE becomes FILE.1, FILE.1 FILE.2')
            [CompletionResult]::new('--keep', '--keep', [CompletionResultType]::ParameterName, 'How many full files to keep')
            [CompletionResult]::new('--store-age', '--store-age', [CompletionResultType]::ParameterName, 'Remove from the store what is older')
            [CompletionResult]::new('--store-size', '--store-size', [CompletionResultType]::ParameterName, 'Remove the oldest from the store where it would grow larger')
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('--store', '--store', [CompletionResultType]::ParameterName, 'Keep a ring of recordings in a directory, for check and watch')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'gpumem;rules' {
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print them as JSON (gpumem.rules/1)')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'gpumem;config' {
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('show', 'show', [CompletionResultType]::ParameterValue, 'Print the configuration in force, defaults included, as TOML')
            [CompletionResult]::new('path', 'path', [CompletionResultType]::ParameterValue, 'Print the paths of the configuration files, and which of them exist')
            [CompletionResult]::new('check', 'check', [CompletionResultType]::ParameterValue, 'Validate a file, or the configuration in force: an error names file, line and key')
            [CompletionResult]::new('test', 'test', [CompletionResultType]::ParameterValue, 'Show what each rule would have found in a recording, and when')
            break
        }
        'gpumem;config;show' {
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'gpumem;config;path' {
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'gpumem;config;check' {
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'gpumem;config;test' {
            [CompletionResult]::new('--replay', '--replay', [CompletionResultType]::ParameterName, 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine')
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print it as JSON (gpumem.test/1)')
            [CompletionResult]::new('--demo', '--demo', [CompletionResultType]::ParameterName, 'Use the built-in recording: four GPUs, training, an idle notebook, a leak, an orphan')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'gpumem;doctor' {
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print it as JSON (gpumem.doctor/1)')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'gpumem;schema' {
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'gpumem;completions' {
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'gpumem;man' {
            [CompletionResult]::new('--nvml-library', '--nvml-library', [CompletionResultType]::ParameterName, 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1')
            [CompletionResult]::new('--nvml-timeout', '--nvml-timeout', [CompletionResultType]::ParameterName, 'How long one GPU may take to answer; then it is shown as stale, and the others are sampled on')
            [CompletionResult]::new('--config', '--config', [CompletionResultType]::ParameterName, 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml')
            [CompletionResult]::new('--color', '--color', [CompletionResultType]::ParameterName, 'When to use colour; NO_COLOR is honoured')
            [CompletionResult]::new('--store-dir', '--store-dir', [CompletionResultType]::ParameterName, 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store')
            [CompletionResult]::new('--utc', '--utc', [CompletionResultType]::ParameterName, 'Show times in UTC instead of this machine''s time zone; JSON always is in UTC')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
    })

    $completions.Where{ $_.CompletionText -like "$wordToComplete*" } |
        Sort-Object -Property ListItemText
}
