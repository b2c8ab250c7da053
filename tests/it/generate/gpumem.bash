
# Completes processes, GPUs, users, notebooks and rules. Output of gpumem is quoted, and never evaluated.
_gpumem_values() {
    # bash splits words at = and :, but gpumem does not.
    local rest="${COMP_LINE:0:COMP_POINT}" word words=() i
    for (( i = 0; i <= COMP_CWORD; i++ )); do
        word="${COMP_WORDS[i]}"
        if [[ i -eq 0 || $rest == [[:space:]]* ]]; then
            rest="${rest#"${rest%%[![:space:]]*}"}"
            words+=("")
        fi
        [[ i -eq COMP_CWORD ]] && word="$rest"
        words[${#words[@]} - 1]+="$word"
        rest="${rest#"$word"}"
    done
    local found
    found="$(command gpumem complete -- "${words[@]}" 2>/dev/null)" || return 1
    # An empty list is complete, too, so do not complete files.
    compopt +o bashdefault +o default 2>/dev/null

    # `typed` is the typed part of the value without quotes, and `kept` is the part that readline does not replace.
    local typed="${words[${#words[@]} - 1]}" quote="" kept=""
    [[ $typed == --*=* ]] && typed="${typed#*=}"
    if [[ $typed == [\'\"]* ]]; then
        quote="${typed:0:1}"
        typed="${typed:1}"
    fi
    typed="${typed//\\/}"
    local breaks="${COMP_WORDBREAKS//[!:=]/}"
    if [[ -z $quote && -n $breaks && $typed == *[$breaks]* ]]; then
        kept="${typed%"${typed##*[$breaks]}"}"
    fi
    local value what values=() whats=()
    while IFS=$'\t' read -r value what; do
        [[ -n $value && $value == "$typed"* ]] || continue
        value="${value#"$kept"}"
        if [[ -n $quote ]]; then
            [[ $value == *[\'\"\\\$\`!]* ]] && continue
        elif [[ $value == *[!A-Za-z0-9_./:@%+,=-]* ]]; then
            printf -v value %q "$value"
        fi
        values+=("$value")
        whats+=("$what")
    done <<<"$found"
    COMPREPLY=("${values[@]}")
    [[ ${#values[@]} -eq 1 && ${values[0]} == *: ]] && compopt -o nospace 2>/dev/null
    # If bash only lists the values, add the descriptions, which bash then does not insert.
    case "$COMP_TYPE" in
        33 | 63 | 64)
            [[ ${#values[@]} -gt 1 ]] || return 0
            for i in "${!values[@]}"; do
                word="${values[i]}  ${whats[i]}"
                COMPREPLY[i]="${word:0:${COLUMNS:-80} - 1}"
            done
            ;;
    esac
    return 0
}

_gpumem_with_values() {
    COMPREPLY=()
    _gpumem_values || _gpumem "$@"
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _gpumem_with_values -o nosort -o bashdefault -o default gpumem
else
    complete -F _gpumem_with_values -o bashdefault -o default gpumem
fi
