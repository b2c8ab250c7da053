//! Tests with secrets as users enter them on command lines, and with similar harmless words.

use std::borrow::Cow;

use super::*;

fn hidden(arguments: &[&str]) -> Vec<String> {
    let mut arguments: Vec<_> = arguments.iter().map(|&argument| Cow::Borrowed(argument)).collect();
    hide(&mut arguments);
    arguments.into_iter().map(Cow::into_owned).collect()
}

/// Arguments separated by `|`, and the part that must be masked.
const SECRETS: [(&str, &str); 130] = [
    ("x|-p|s3cret", "s3cret"),
    ("python|-c|openai_key = '''s3cret'''", "s3cret"),
    ("python|-c|api_key = 's3cret'; run()", "s3cret"),
    ("x|--auth|s3cret", "s3cret"),
    ("ngrok|config|add-authtoken|s3cret", "s3cret"),
    ("aws|configure|set|profile.a.aws_session_token|s3cret", "s3cret"),
    ("git|config|--global|user.password|s3cret", "s3cret"),
    ("bash|-c|aws configure set aws_secret_access_key s3cret", "s3cret"),
    ("smbclient|//h/s|-U|ann%s3cret", "s3cret"),
    ("smbclient|//h/s|--user=ann%s3cret", "s3cret"),
    ("curl|-U|ann:s3cret|http://h", "s3cret"),
    ("curl|-b|session=s3cret|http://h", "s3cret"),
    ("env|SSHPASS=s3cret|sshpass|-e|ssh", "s3cret"),
    ("curl|-H|X-Auth: s3cret", "s3cret"),
    ("sh|-c|echo machine h login ann password s3cret >.netrc", "s3cret"),
    ("x|machine h\nlogin ann\npassword s3cret", "s3cret"),
    ("kubectl|create|secret|generic|a|--from-literal=b=s3cret", "s3cret"),
    ("xfreerdp|/u:ann|/p:s3cret|/v:h", "s3cret"),
    ("sqlcmd|-S|h|-U|ann|-P|s3cret", "s3cret"),
    // Options whose names indicate a secret
    ("jupyter_server|--IdentityProvider.token=s3cret", "s3cret"),
    ("jupyter-notebook|--NotebookApp.password=argon2:a b=s3cret", "s3cret"),
    ("vllm|serve|m|--api-keys|s3cret,s3cret2", "s3cret"),
    ("x|--token|s3cret", "s3cret"),
    ("x|-password|s3cret", "s3cret"),
    ("x|--password2|s3cret", "s3cret"),
    ("x|--cookie|session=s3cret", "s3cret"),
    ("x|--otp=318245", "318245"),
    ("ipykernel_launcher|--Session.key=b\"s3cret\"", "s3cret"),
    ("tensorboard|--args=\"--api-key s3cret\"", "s3cret"),
    // Parameters of Hydra, papermill and other programs
    ("python|train.py|logger.wandb.api_key=s3cret", "s3cret"),
    ("python|train.py|+auth.token=s3cret", "s3cret"),
    ("papermill|a|b|-p|hf_token|s3cret", "s3cret"),
    ("env|HF_TOKEN=s3cret|python", "s3cret"),
    ("env|OPENAI_API_KEY_2=s3cret|python", "s3cret"),
    ("env|SMTP_PASS=a s3cret|x", "s3cret"),
    ("docker|run|-e|HF_TOKEN=s3cret|image", "s3cret"),
    // Options whose names do not indicate a secret
    ("curl|-u|ann:s3cret|https://host", "s3cret"),
    ("curl|-uann:s3cret|https://host", "s3cret"),
    ("curl|--user|ann:s3cret", "s3cret"),
    ("sshpass|-p|s3cret|ssh|host", "s3cret"),
    ("sshpass|-ps3cret|ssh|host", "s3cret"),
    ("mysql|-u|ann|-ps3cret|db", "s3cret"),
    ("/usr/bin/mysqldump|-ps3cret|db", "s3cret"),
    ("redis-cli|-a|s3cret|ping", "s3cret"),
    ("wandb|login|0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
    ("wandb|login|--relogin|0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
    ("openssl|enc|-pass|pass:s3cret", "s3cret"),
    ("curl|-H|Authorization: Bearer s3cret", "s3cret"),
    ("curl|-H|Proxy-Authorization: Basic czNjcmV0Og==", "czNjcmV0"),
    ("curl|-HAuthorization: Bearer s3cret", "s3cret"),
    ("curl|--header=Authorization: Bearer s3cret", "s3cret"),
    ("curl|-H|PRIVATE-TOKEN:s3cret", "s3cret"),
    ("curl|-H|Cookie: a=b; session=s3cret", "s3cret"),
    ("x|--header-value|Bearer s3crets3cret", "s3crets3cret"),
    ("x|--auth|Bearer|s3crets3cret", "s3crets3cret"),
    ("x|--auth|Basic|czNjcmV0OnMzY3JldA==", "czNjcmV0"),
    ("git|clone|https://ann:s3cret@github.com/a/b", "s3cret"),
    ("git|clone|https://s3cret@github.com/a/b", "s3cret"),
    ("celery|-A|a|-b|redis://:s3cret@host:6379/0", "s3cret"),
    ("x|--db=mongodb+srv://ann:s3cret@host/db", "s3cret"),
    ("x|https://host/lab?token=s3cret&a=b#c", "s3cret"),
    ("x|https://host/#access_token=s3cret", "s3cret"),
    ("x|https://b.blob.core.windows.net/c?sv=2&sp=r&sig=s3cret", "s3cret"),
    ("x|https://maps/api?key=AIzaSyA0123456789abcdefghijklmnopqrstuv", "AIzaSy"),
    ("x|--hook=https://hooks.slack.com/services/T0/B0/s3cret", "s3cret"),
    ("x|https://api.telegram.org/bot123:s3cret/send", "s3cret"),
    // Series of assignments
    ("x|DefaultEndpointsProtocol=https;AccountName=a;AccountKey=s3cret==;E=f", "s3cret"),
    ("x|Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=s3cret", "s3cret"),
    ("x|host=db user=ann password=s3cret dbname=a", "s3cret"),
    // JSON and similar formats
    ("x|{\"token\": \"s3cret\", \"a\": 1}", "s3cret"),
    ("x|--config={\"password\": \"s3 s3cret\"}", "s3cret"),
    ("x|{\\\"token\\\": \\\"s3cret\\\"}", "s3cret"),
    ("x|{\"headers\": {\"Authorization\": \"Bearer s3cret\"}}", "s3cret"),
    ("x|{\"pin_password\": 318245}", "318245"),
    ("x|--model-loader-extra-config|{token:s3cret}", "s3cret"),
    // Scripts of shells and other programs
    ("sh|-c|HF_TOKEN='a s3cret' x  --token y; PASSWORD=\"s3cret", "s3cret"),
    ("bash|-lc|export WANDB_API_KEY=s3cret && python train.py", "s3cret"),
    ("bash|-c|vllm serve m --api-key 's3cret' --port 1", "s3cret"),
    ("bash|-c|curl -H \"Authorization: Bearer s3cret\" https://host", "s3cret"),
    ("bash|-c|curl -H Authorization:s3cret https://host", "s3cret"),
    (
        "python|-c|import wandb; wandb.login(key=\"local-0123456789abcdef0123456789abcdef01234567\")",
        "0123456789abcdef",
    ),
    ("python|-c|login(token = 's3cret')", "s3cret"),
    // Secrets recognised by their form
    ("x|hf_aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH", "aBcDeFg"),
    ("x|--arg=sk-proj-abc123DEF456ghi789JKL012mno345", "abc123"),
    ("x|ghp_0123456789abcdefghijABCDEFGHIJ012345", "0123456789"),
    ("x|token is github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuv", "11ABCDEFG0"),
    ("x|--name|AKIAIOSFODNN7EXAMPLE", "IOSFODNN7"),
    // Secrets after unknown names
    ("bash|-c|export KAGGLE_KEY='s3cret'; python train.py", "s3cret"),
    ("bash|-c|python train.py --kaggle-key s3cret; sleep 1", "s3cret"),
    ("x|--passwort=12345", "12345"),
    ("python|cli.py|--frobnicate|s3cret", "s3cret"),
    ("python|cli.py|--frobnicate=s3 cret s3cret", "s3cret"),
    ("python|cli.py|--frobnicate=wJalrXUtnFEMI/K7MDENG/bPxRfiCY", "K7MDENG"),
    ("python|train.py|trainer.frobnicate=s3cret", "s3cret"),
    ("env|MY_THING=s3cret|x", "s3cret"),
    ("mpirun|-x|MY_THING=s3cret|python|a.py", "s3cret"),
    ("mpirun|-genv|HF_TOKEN|s3cret|python|a.py", "s3cret"),
    ("x|-k|s3cret", "s3cret"),
    ("gh|secret|set|NAME|--body|s3cret", "s3cret"),
    // Secrets recognised by their position
    ("lftp|-u|ann,s3cret|host", "s3cret"),
    ("x|ann:s3cret", "s3cret"),
    ("x|admin@corp:hunter2", "hunter2"),
    ("x|ann:s3cret@h:5432/db", "s3cret"),
    ("lftp|-e|open -u ann,s3cret h", "s3cret"),
    ("python|-c|os.environ['KAGGLE_KEY'] = 's3cret'", "s3cret"),
    ("python|-c|requests.get(u, auth=('ann', 's3cret'))", "s3cret"),
    ("x|https://h/a?b=c&key=s3cret", "s3cret"),
    ("age|AGE-SECRET-KEY-1QQPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGP", "QYQSZQGP"),
    ("x|9f2c1d7a8b3e4f5061728394a5b6c7d8e9f001129f2c1d7a8b3e4f5061728394", "9f2c1d7a"),
    ("x|0x9f2c1d7a8b3e4f5061728394a5b6c7d8e9f001129f2c1d7a8b3e4f5061728394", "9f2c1d7a"),
    ("python|-c|from huggingface_hub import login; login('s3cret')", "s3cret"),
    ("python|-c|api.login('ann', \"s3cret\")", "s3cret"),
    ("python|-c|x.set_access_token( 's3cret' )", "s3cret"),
    ("x|https://api.example.com/hook/a8Kd92jfLs01mZq7/run", "a8Kd92jf"),
    ("x|https://api.example.com/token/s3cret/run?a=b", "s3cret"),
    ("bash|-c|curl https://api.example.com/v1/webhooks/s3cret", "s3cret"),
    // Tokens of other services
    ("x|glpat-abcDEF123456ghiJKL78", "abcDEF"),
    ("x|xoxb-123456789012-1234567890123-abcDEF123456", "123456789012"),
    ("x|AIzaSyA0123456789abcdefghijklmnopqrstuv", "SyA0123"),
    ("x|--h=eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N", "eyJ"),
    ("x|nvapi-abcDEF123456ghiJKL789mnoPQR012", "abcDEF"),
    ("x|gsk_abcDEF123456ghiJKL789mnoPQR012stu", "abcDEF"),
    ("x|dapi0123456789abcdef0123456789abcdef", "0123456789"),
    ("x|--x=Zx8Kq2Lm9Pv4Rt7Wy1Bn6Hs3Jd5Fg0Ca", "Zx8Kq2"),
    ("x|FOO=q7x2m9k4v8t1z6p3w5r0y7n2b4", "q7x2m9k4"),
    ("x|--key|q7x2m9k4v8t1z6p3w5r0y7n2b4", "q7x2m9k4"),
    ("x|--foo=czNjcmV0c2VjcmV0U2VjcmV0MTIzNDU2Nzg5MA==", "czNjcmV0"),
    (
        "x|--wandb-dir|a|local-0123456789|WANDB_KEY=0123456789abcdef0123456789abcdef01234567",
        "abcdef0123",
    ),
    ("x|-----BEGIN RSA PRIVATE KEY-----\nMIIEs3cret\n-----END RSA PRIVATE KEY-----\n", "s3cret"),
    ("x|--pem=-----BEGIN OPENSSH PRIVATE KEY-----\ns3cret", "s3cret"),
];

/// Arguments that must not be masked.
const HARMLESS: [&str; 75] = [
    "Xorg|:0|-auth|/run/user/1000/gdm/Xauthority",
    "srun|-p|a100|python|train.py|-u|ann|--user=ann%",
    "ssh|-p|2222|host|mkdir|-p|/data/a1",
    "srun|-p|gpu|x|-p|8080|-p|a/b1.py|--auth=basic|--auth|token|make|-j8|all",
    "openssl|req|-in|api_key.pem|-out|token.json|secret_key.txt|a",
    "python|make_token.py|5|access_token|--lr",
    "python|train.py|--tokenizer|bert|--max-tokens=5",
    "x|--max-num-batched-tokens|8192",
    "x|--max_token|77|--num-token=3",
    "x|--tokenizer-mode|auto|--skip-tokenizer-init",
    "x|--tokenizer=meta-llama/Meta-Llama-3.1-8B-Instruct",
    "x|--pad-token=<p>|--eos_token|</s>|--bos-token|<s>",
    "x|--eos-token-id|2|--stop-token-ids|1,2",
    "x|--use_auth_token|--lr=1",
    "x|--use-auth-token=true|--no-password",
    "x|--keyboard|us|--monkey=b|--keypoints=17",
    "x|--key-frames|10|--keyframe-interval=3",
    "x|--num_key_value_heads|8|--num-key-value-heads=8",
    "x|--sort-key|loss|--primary-key=id",
    "x|--image-key|jpg|--caption_key=txt",
    "x|--hotkey|ctrl|--key-padding-mask",
    "x|passes=3|--passes|2|--num-passes=3",
    "x|--first-pass|3|--forward-pass=1|--two-pass|2",
    "x|--pass-through|1|--bypass=2|--pass-at-k|10|passenger=1",
    "x|--seed=123456789012345678901234",
    "x|--revision=9f2c1d7a8b3e4f5061728394a5b6c7d8e9f00112",
    "x|image@sha256:9f2c1d7a8b3e4f5061728394a5b6c7d8e9f001129f2c1d7a8b3e4f5061728394",
    "env|CUDA_VISIBLE_DEVICES=GPU-8f3c2a1b-1234-5678-9abc-def012345678",
    "env|CUDA_VISIBLE_DEVICES=MIG-GPU-8f3c2a1b-1234-5678-9abc-def012345678/1/0",
    "x|--f=/root/.local/share/jupyter/runtime/kernel-v36f9aBcD123456789012345678901234.json",
    "x|--data=/data/ImageNet21k/Train2Val3/Shard00001Of01024",
    "x|--model=Qwen/Qwen2.5-Coder-32B-Instruct-GPTQ-Int4",
    "x|--policy=TransformerActorCriticPolicyWithLongShortTermMemory",
    "x|--name=stable-diffusion-xl-base-1.0-fp16-lora-r64-a128",
    "x|--lr=0.00012345678901234567890",
    "x|--layers=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17",
    "x|--betas=(0.9, 0.999)|--shape=[1,3,224,224]",
    "x|--password-file|/run/secrets/db|--token-file=/run/secrets/token",
    "x|--ssl-keyfile|/etc/ssl/key.pem|--ssl-certfile=/etc/ssl/cert.pem",
    "x|--api-key-env|OPENAI_API_KEY",
    "x|--auth|none|--auth-mode=basic",
    "x|--signature|serving_default|--design=1|--significance=0.05",
    "x|--cookiecutter|1|--cookies-file=b",
    "docker|run|-p|8080:80|--user|1000:1000|-u|0:0",
    "python|-m|torch.distributed.run|--rdzv-endpoint=host:29500|--rdzv_id=123",
    "x|http://host:1/a?b=c@d|https://huggingface.co/a/b?revision=main",
    "x|ssh://git@github.com/a/b|git@github.com:a/b.git",
    "x|postgresql://ann@db:5432/app",
    "x|{\"rope_type\": \"yarn\", \"factor\": 4.0, \"max_tokens\": 5}",
    "x|{\"tokenizer\": \"a\", \"keys\": [\"a\"], \"key\": \"b\"}",
    "python|-c|a token: it's\n a  b",
    "python|-c|from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)",
    "python|-c|for key in d: print(key, d[key]); x = a if b else c",
    "sh|-c|for key in a b; do echo \"$key: done\"; done",
    "x|a basic test|Basic|usage|basic",
    "x|sk-learn-contrib-project|hf_hub_download|hf_transfer=1",
    "x|task-manager-2024-01-01T00:00:00",
    "x|login|ann|--login|ben",
    "python|train.py|configs/a.yaml|--config-name|base|model=bert|trainer.max_epochs=5|+optim.lr=1e-4",
    "python|train.py|--batch-size|32|--lr=3e-4|--epochs|10|--output-dir|out|--fp16|--seed=7|run",
    "python|-m|pkg.train|--data.batch_size=8|--model.name=bert|--trainer.devices|4|--accelerator|gpu",
    "accelerate|launch|--multi_gpu|--mixed_precision|bf16|--num_processes|4|train.py|configs/a.yaml",
    "python|train.py|--frobnicate|3|--top-k|a|--level2|0.9,0.999|--other=true|--size4|8GiB|--after|1h30m",
    "python|train.py|--frobnicate|host:29500|--foo=/data/x|--bar|conf/a.yaml|--baz=http://h:1/x",
    "vllm|serve|meta-llama/Llama-3.1-8B|--port|8000|--served-model-name|llama|--tensor-parallel-size=2",
    "vllm|serve|m|--enable-prefix-caching|--gpu-memory-utilization|0.9|--max-model-len|8k|--dtype|auto",
    "docker|run|-it|--rm|--gpus|all|--name|bert|-v|/a:/b|-p|8080:80|image:latest|nvidia-smi",
    "bash|-c|CUDA_VISIBLE_DEVICES=0 python train.py --lr 0.1 --model=bert; sleep 1",
    "python|-m|ipykernel_launcher|-f|/run/kernel-1.json|--pin-memory|true|--pin_memory=1",
    "uvicorn|app.main:app|--workers|4|cuda:0|pytorch:2.4-cuda12|llama3:8b|deepseek-r1:671b|mixtral:8x7b",
    "containerd-shim|-namespace|moby|-id|9f2c1d7a8b3e4f5061728394a5b6c7d8e9f001129f2c1d7a8b3e4f5061728394",
    "x|https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct/resolve/main/model-00001-of-00004.safetensors",
    "x|https://h/a/resolve/9f2c1d7a8b3e4f5061728394a5b6c7d8e9f00112|http://h/lab/tree/Untitled1.ipynb|ray::IDLE",
    "x|keyring|the key = a|--token",
    "x|é…://|=|:|--|-|-=|=-|'|\"|a='|://@|?=&",
];

fn parts(arguments: &str) -> Vec<&str> {
    arguments.split('|').collect()
}

#[test]
fn the_secrets_table_is_valid() {
    let table = parse().unwrap();
    // The code compares these words with lower-case text.
    assert!(
        table.words.iter().chain(&table.harmless_words).all(|word| *word == word.to_lowercase())
    );
}

#[test]
fn secrets_in_typical_arguments_are_masked() {
    let mut visible = Vec::new();
    for (arguments, secret) in SECRETS {
        assert!(arguments.contains(secret), "{arguments}");
        let masked = hidden(&parts(arguments)).join("|");
        if masked.contains(secret) || !masked.contains(HIDDEN) {
            visible.push(format!("{arguments} is shown as {masked}"));
        }
    }
    assert!(visible.is_empty(), "{} seen:\n{}", visible.len(), visible.join("\n"));
}

#[test]
fn harmless_arguments_are_unchanged() {
    let mut changed = Vec::new();
    for arguments in HARMLESS {
        let masked = hidden(&parts(arguments)).join("|");
        if masked != arguments {
            changed.push(format!("{arguments} is shown as {masked}"));
        }
    }
    let changes = changed.join("\n");
    assert!(changed.is_empty(), "{} changed:\n{changes}", changed.len());
}

#[test]
fn text_around_a_secret_is_kept() {
    for (arguments, expected) in [
        ("x|--api-key|s|--port|1", "x|--api-key|***|--port|1"),
        ("env|HF_TOKEN=s3cret|wandb.api_key=s", "env|HF_TOKEN=***|wandb.api_key=***"),
        (
            "sh|-c|HF_TOKEN='s 3' x  --token s y; PASSWORD=\"s",
            "sh|-c|HF_TOKEN='***' x  --token *** y; PASSWORD=\"***",
        ),
        (
            "x|--url=http://ann:s3cret@host/lab?token=s&a=b#c",
            "x|--url=http://ann:***@host/lab?token=***&a=b#c",
        ),
        (
            "x|https://ghp_s3cret@github.com/a|--token=https://s",
            "x|https://***@github.com/a|--token=***",
        ),
        ("papermill|a|b|-p|hf_token|s|-p|n|1", "papermill|a|b|-p|hf_token|***|-p|n|1"),
        (
            "curl|-H|Authorization: token s|-H|Cookie: a=b",
            "curl|-H|Authorization: ***|-H|Cookie: ***",
        ),
        (
            "sh|-c|curl -H 'Authorization: Bearer s' -o a http://h",
            "sh|-c|curl -H 'Authorization: ***' -o a http://h",
        ),
        ("x|{\"token\": \"s\", \"a\": 1}|-u|ann:s", "x|{\"token\": \"***\", \"a\": 1}|-u|ann:***"),
        (
            "x|name=b;AccountKey=s==;c=d|key.pem\n-----BEGIN PRIVATE KEY-----\ns\n-----END PRIVATE KEY-----\nz",
            "x|name=b;AccountKey=***;c=d|key.pem\n***\nz",
        ),
    ] {
        assert_eq!(hidden(&parts(arguments)).join("|"), expected);
    }
}

#[test]
fn secrets_in_environment_values_are_masked() {
    for (value, expected) in [
        ("keep it, my token is hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ01", "keep it, my token is ***"),
        ("http://ann:s3cret@host:80", "http://ann:***@host:80"),
        (
            "expandable_segments:True,max_split_size_mb:128",
            "expandable_segments:True,max_split_size_mb:128",
        ),
        // A random id must remain visible, because ids distinguish jobs.
        ("Zx8Kq2Lm9Pv4Rt7Wy1Bn6Hs3Jd5Fg0Ca", "Zx8Kq2Lm9Pv4Rt7Wy1Bn6Hs3Jd5Fg0Ca"),
    ] {
        let mut masked = Cow::Borrowed(value);
        hide_in_value(&mut masked);
        assert_eq!(masked, expected);
    }
}

#[test]
fn masking_does_not_panic_or_take_quadratic_time() {
    // The texts consist of all orders of three fragments that the masking searches for, and of command lines filled
    // with one fragment. Masking in quadratic time would take minutes.
    let pieces =
        r#"token = : " ' \ :// @ é - *** Bearer -----BEGIN -----END xox eyJ & { -u -p mysql login"#;
    let pieces: Vec<&str> = pieces.split(' ').chain([" ", "\n", "PRIVATE KEY"]).collect();
    for &a in &pieces {
        hidden(&["sh", "-c", &a.repeat((32 << 10) / a.len())]);
        for &b in &pieces {
            for &c in &pieces {
                let text = format!("{a}{b}{c}");
                hidden(&[&text, a, b, c]);
                hidden(&["sh", "-c", &text]);
            }
        }
    }
}
