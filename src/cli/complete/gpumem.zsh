# Values that gpumem itself knows: processes, GPUs, users, rules, findings. What is offered is data: zsh quotes
# it, and nothing of it is run.
_gpumem_values() {
    local found entry value
    local -a whole begun
    found="$(command gpumem complete -- "${(@)words[1,CURRENT-1]}" "$PREFIX" 2>/dev/null)" || return 1
    [[ $PREFIX == --*=* ]] && compset -P 1 '--*='
    for entry in "${(@f)found}"; do
        [[ -n $entry ]] || continue
        value="${${${entry%%$'\t'*}//\\/\\\\}//:/\\:}"
        entry="$value:${${entry#*$'\t'}//\\/\\\\}"
        if [[ $value == *: ]]; then
            begun+=("$entry")
        else
            whole+=("$entry")
        fi
    done
    (( $#whole )) && _describe -t values value whole -o nosort
    (( $#begun )) && _describe -t values value begun -o nosort -S ''
    return 0
}

_gpumem() {
    _gpumem_values || _gpumem_static "$@"
}

