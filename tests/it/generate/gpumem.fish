# Values that gpumem itself knows: processes, GPUs, users, rules, findings. What is offered is data: fish quotes
# it, and nothing of it is run.
function __fish_gpumem_values
    command gpumem complete -- (commandline -opc) (commandline -ct) 2>/dev/null
end

