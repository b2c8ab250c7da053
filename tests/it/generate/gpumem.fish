# Completes processes, GPUs, users, notebooks and rules. fish quotes the output of gpumem, and never evaluates it.
function __fish_gpumem_values
    command gpumem complete -- (commandline -opc) (commandline -ct) 2>/dev/null
end

