# Completes processes, GPUs, users, notebooks and rules. zsh quotes the output of gpumem, and never evaluates it.
_gpumem_values() {
    local found entry value
    local -a values whole whole_shown begun begun_shown
    integer width=0
    found="$(command gpumem complete -- "${(@)words[1,CURRENT-1]}" "$PREFIX" 2>/dev/null)" || return 1
    [[ $PREFIX == --*=* ]] && compset -P 1 '--*='
    values=("${(@)${(@f)found}%%$'\t'*}")
    for value in "${(@)values}"; do
        (( $#value > width )) && width=$#value
    done
    for entry in "${(@f)found}"; do
        [[ -n $entry ]] || continue
        value="${entry%%$'\t'*}"
        entry="${(r:width:)value}  ${entry#*$'\t'}"
        entry="${entry[1,COLUMNS-2]}"
        if [[ $value == *: ]]; then
            begun+=("$value")
            begun_shown+=("$entry")
        else
            whole+=("$value")
            whole_shown+=("$entry")
        fi
    done
    # _describe would sort the values, which are in the order of likelihood.
    (( $#whole )) && compadd -V values -l -d whole_shown -a whole
    (( $#begun )) && compadd -V values -l -d begun_shown -S '' -a begun
    return 0
}

_gpumem() {
    _gpumem_values || _gpumem_static "$@"
}

