
use builtin;
use str;

set edit:completion:arg-completer[gpumem] = {|@words|
    fn spaces {|n|
        builtin:repeat $n ' ' | str:join ''
    }
    fn cand {|text desc|
        edit:complex-candidate $text &display=$text' '(spaces (- 14 (wcswidth $text)))$desc
    }
    var command = 'gpumem'
    for word $words[1..-1] {
        if (str:has-prefix $word '-') {
            break
        }
        set command = $command';'$word
    }
    var completions = [
        &'gpumem'= {
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand -V 'Print the version of gpumem, and those of NVML and the driver where there is one'
            cand --version 'Print the version of gpumem, and those of NVML and the driver where there is one'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand ps 'Show who holds GPU memory now'
            cand check 'Judge by the rules whether GPU memory is wasted; the exit code is the verdict'
            cand explain 'Explain one process, GPU or finding on a page: whose, since when, why, and what to do'
            cand watch 'Watch GPUs, processes and findings live on the terminal'
            cand reap 'End what holds GPU memory and does not need it, and prove that the memory came back'
            cand kill 'End processes of yours that hold GPU memory, and prove that the memory came back'
            cand record 'Record what is observed, a JSON snapshot a line'
            cand rules 'List the rules: what each finds, its settings, their values and what they mean'
            cand config 'Show, prove or try the configuration'
            cand doctor 'Say what works on this machine, what does not, and what to do about it'
            cand schema 'Print the JSON Schema of what gpumem writes'
            cand completions 'Print the completion script of a shell'
            cand man 'Print a manual page'
        }
        &'gpumem;ps'= {
            cand --gpu 'Only these GPUs, by index or UUID'
            cand --user 'Only processes of these users, by name or uid'
            cand --sort 'Order of the processes'
            cand --replay 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine'
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand --json 'Print the snapshot as JSON'
            cand --demo 'Use the recording that is built in: four GPUs, training, an idle notebook, a leak, an orphan'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'gpumem;check'= {
            cand --window 'How long to sample this machine [default: 30s, or 2s where the stored history reaches far enough back for every rule]'
            cand --interval 'Time between samples [default: 1s, or the configuration''s]'
            cand --fail-on 'The least severity that makes the exit code 1 [default: warning; with --wait-free none]'
            cand --rule 'Judge by these rules only, also where they are switched off'
            cand --kind 'Judge by rules of these kinds only, also where they are switched off'
            cand --gpu 'Only what is about these GPUs, by index or UUID; the others may be unreadable'
            cand --user 'Only what is about processes of these users, by name or uid'
            cand --max-used 'Fail where a GPU uses more than this at the end'
            cand --max-unattributed 'Fail where more than this is used by no process that NVML lists, at the end'
            cand --wait-free 'Wait until so much memory is free on that GPU, or on any one (of --gpu); then exit with 0'
            cand --timeout 'How long --wait-free waits; then exit with 1'
            cand --replay 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine'
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand --json 'Print the verdict as JSON (gpumem.check/1): one document, also where the check fails'
            cand -q 'Print nothing: the exit code is the answer'
            cand --quiet 'Print nothing: the exit code is the answer'
            cand --no-store 'Do not use the history that `gpumem record --store` keeps'
            cand --demo 'Use the recording that is built in: four GPUs, training, an idle notebook, a leak, an orphan'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'gpumem;explain'= {
            cand --framework 'Explain a framework; without NAME, list those that are known'
            cand --window 'How long to sample this machine before it is explained [default: 2s]'
            cand --replay 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine'
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand --json 'Print the page as JSON (gpumem.explain/1)'
            cand --no-store 'Do not use the history that `gpumem record --store` keeps'
            cand --demo 'Use the recording that is built in: four GPUs, training, an idle notebook, a leak, an orphan'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'gpumem;watch'= {
            cand --interval 'Time between samples [default: 1s, or the configuration''s]'
            cand --speed 'How fast a recording plays, as a multiple of real time'
            cand --theme 'The colours [default: auto]'
            cand --once 'Print one picture to standard output, and end'
            cand --size 'The picture''s columns and rows [default: the terminal''s, or COLUMNS and LINES, or 80x24]'
            cand --keys 'Keys that are pressed before the picture is taken: `jj<Enter>`, `?<PgDn>`; `<lt>` is <'
            cand --replay 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine'
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand --ascii 'Draw with ASCII only [default: where the locale is not UTF-8]'
            cand --no-store 'Do not use the history that `gpumem record --store` keeps'
            cand --demo 'Use the recording that is built in: four GPUs, training, an idle notebook, a leak, an orphan'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'gpumem;reap'= {
            cand --pid 'These processes, whatever the rules say'
            cand --notebook 'The kernels of these notebooks, by path or the end of it, whatever the rules say'
            cand --kernel 'These notebook kernels, by id, whatever the rules say'
            cand --gpu 'Only what holds memory on these GPUs, by index or UUID'
            cand --user 'Only processes of these users, by name or uid; those of others take --all-users'
            cand --kind 'Only what is found of these kinds, also by rules that are switched off [default: orphan, stopped, idle]'
            cand --rule 'Only what these rules found, also where they are switched off'
            cand --older-than 'Only what has been so for as long; of processes that are named, what has run for as long'
            cand --min 'Only where at least so much would come back'
            cand --signal 'The first signal, instead of TERM: INT, HUP, QUIT, USR1, USR2 or KILL'
            cand --grace 'How long each signal may take before the next one, instead of what is usual: 10s, 35s for the launcher of a distributed run'
            cand --window 'How long to sample this machine before the plan [default: 30s, or 2s where the stored history reaches far enough back for every rule, or where processes are named]'
            cand --replay 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine'
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand -y 'Carry the plan out without asking'
            cand --yes 'Carry the plan out without asking'
            cand -n 'Print the plan and do not ask'
            cand --dry-run 'Print the plan and do not ask'
            cand --direct 'Signal also what a scheduler, a service manager or a container runtime owns, instead of saying what to type'
            cand --all-users 'Other users'' processes too'
            cand --graphics 'Processes that only draw, too'
            cand --servers 'Inference servers that listen, too'
            cand --json 'Print the plan, and what came of it, as one JSON document (gpumem.reap/1); does not ask'
            cand --history 'Show what was done, by the ledger; with --json as gpumem.history/1'
            cand --watch 'Go on until it is ended: tell people what is found, and end what rules find whose configuration says action = "reap", after they were warned'
            cand --no-store 'Do not use the history that `gpumem record --store` keeps'
            cand --demo 'Use the recording that is built in: four GPUs, training, an idle notebook, a leak, an orphan'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'gpumem;kill'= {
            cand --signal 'The first signal, instead of TERM: INT, HUP, QUIT, USR1, USR2 or KILL'
            cand --grace 'How long each signal may take before the next one, instead of what is usual'
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand -y 'Do not ask'
            cand --yes 'Do not ask'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'gpumem;record'= {
            cand --interval 'Time between samples [default: 1s, 5s with --store, or the configuration''s]'
            cand --duration 'Stop after this long'
            cand --max-size 'Start a new file when this one would grow larger; FILE becomes FILE.1, FILE.1 FILE.2'
            cand --keep 'How many full files to keep'
            cand --store-age 'Remove from the store what is older'
            cand --store-size 'Remove the oldest from the store where it would grow larger'
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand --store 'Keep a ring of recordings in a directory, for check and watch'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'gpumem;rules'= {
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand --json 'Print them as JSON (gpumem.rules/1)'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'gpumem;config'= {
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand show 'Print the configuration in force, defaults included, as TOML'
            cand path 'Print where configuration is looked for, and which files there are'
            cand check 'Prove a file, or the configuration in force: an error names file, line and key'
            cand test 'Say what each rule would have found in a recording, and when'
        }
        &'gpumem;config;show'= {
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'gpumem;config;path'= {
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'gpumem;config;check'= {
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'gpumem;config;test'= {
            cand --replay 'Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine'
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand --json 'Print it as JSON (gpumem.test/1)'
            cand --demo 'Use the recording that is built in: four GPUs, training, an idle notebook, a leak, an orphan'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'gpumem;doctor'= {
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand --json 'Print it as JSON (gpumem.doctor/1)'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'gpumem;schema'= {
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'gpumem;completions'= {
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'gpumem;man'= {
            cand --nvml-library 'The NVML library to load, instead of the loader''s libnvidia-ml.so.1'
            cand --nvml-timeout 'How long one GPU may take to answer; then it is shown as stale and the others go on'
            cand --config 'The configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml'
            cand --color 'When to use colour; NO_COLOR is honoured'
            cand --store-dir 'The directory of the stored history, instead of /var/lib/gpumem/store and ~/.local/state/gpumem/store'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
    ]
    $completions[$command]
}
