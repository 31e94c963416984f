# From the program on, all words are the program's.
@OWN@() {
    local at=1
    while ((at < COMP_CWORD)); do
        case "${COMP_WORDS[at]}" in
            --)
                ((at += 1))
                break
                ;;
            @OPTIONS@)
                # Bash makes three words of --bind=core.
                if [[ "${COMP_WORDS[at + 1]}" == "=" ]]; then ((at += 3)); else ((at += 2)); fi
                ;;
            -*)
                ((at += 1))
                ;;
            *)
                break
                ;;
        esac
        # And three of the value a:2.
        while ((at < COMP_CWORD)) && [[ "${COMP_WORDS[at]}" == [:=]* ]]; do ((at += 2)); done
    done
    if ((at < COMP_CWORD)); then
        if declare -F _command_offset >/dev/null; then
            _command_offset "$at"
        else
            COMPREPLY=()
        fi
    elif ((at > COMP_CWORD)) || [[ "$2" == -* && "${COMP_WORDS[at - 1]}" != "--" ]]; then
        @FUNCTION@ "$@"
    elif [[ -n "$2" ]]; then
        local IFS=$'\n'
        COMPREPLY=($(compgen -c -- "$2"; compgen -f -- "$2"))
        compopt -o filenames
    else
        # Files: bash's own default.
        COMPREPLY=()
    fi
}
