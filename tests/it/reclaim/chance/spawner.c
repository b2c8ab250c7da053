/*
 * The first process of a pid namespace. It starts families of processes, and a program that acts on them. The
 * spawner itself is not traced.
 *
 * usage: spawner FOLDER COMMAND [ARGUMENT...]
 *
 * FOLDER/request and FOLDER/reply are pipes. Processes append these lines to FOLDER/truth:
 *   E ID PID MICROSECONDS                 executed its program, and so has its own environment
 *   R ID PID                              is in the requested state
 *   X ID PID MICROSECONDS                 exits voluntarily
 *   S ID PID SIGNAL                       received a signal
 *   O ID PID MICROSECONDS                 found that its parent has exited
 *   W ID PID                              has worked on request
 * FOLDER/births is an array of `struct birth`. The `id` of the first element is the number of births. A parent fills
 * in an element before the fork, and the kernel adds the pid, so that even a stopped process is recorded.
 * A request is `end` (kill all families, and reply), `work PID` (make a process work), or a process description:
 *   ( WORD... ( ...a child... ) ... )
 *   id=N argv=A,B,C env=K=V,K=V exe=NAME   identity; with argv, the process executes FOLDER/NAME
 *   uid=N session group gpu=N              attributes
 *   die stay attach attach_kept detach     reaction to SIGTERM
 *   stop gone daemon restart fork=N        activity
 *   late parent=N                          report when the parent (N) has exited
 * A fork inherits the open GPU of its parent. exec closes the GPU.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PART "GPUMEM_TEST_PART="
#define MOST 16384
#define WORDS 64
#define CHILDREN 32

/* `gpu` is -1 without a GPU, and `at` is in microseconds. */
struct birth {
    int pid, of, id, gpu, kept, none;
    long long at;
};
#define BIRTHS 16384
#define NUMBER_OF_TRUTH 100
#define NUMBER_OF_BIRTHS 101

static char folder[256];
static struct birth *births;
static int truth;
static const int heard[] = {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTERM, SIGCONT, SIGALRM, SIGWINCH};
static volatile sig_atomic_t caught[65];
/* The index of the open GPU, which forks inherit. */
static int open_gpu = -1;
static volatile pid_t actor;
/* The original parent, even if it has exited. */
static pid_t born_of;

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (long long)time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

/* A single write per line keeps the lines of different processes apart. */
static void tell(const char *format, ...) {
    char line[160];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (write(truth, line, length) != length) _exit(90);
}

static void on_signal(int number) { caught[number] = 1; }

enum { DIE, STAY, ATTACH, ATTACH_KEPT, DETACH };

struct part {
    int id, uid, session, group, gpu, at_term, stop, gone, daemon, restart, forks, kept, late, parent;
    char *argv, *env, *exe;
    char *child[CHILDREN];
    int children;
};

static const char *whole(const char *text) {
    int depth = 0;
    for (; *text; text++) {
        if (*text == '(') depth++;
        if (*text == ')' && --depth == 0) return text + 1;
    }
    _exit(91);
}

/* Parses a process description, and modifies the text. */
static struct part parse(char *text) {
    struct part part = {.id = -1, .uid = -1, .gpu = -1};
    for (text++; *text && *text != ')';) {
        if (*text == ' ') {
            text++;
        } else if (*text == '(') {
            const char *end = whole(text);
            part.child[part.children++] = strndup(text, end - text);
            text = (char *)end;
        } else {
            char *word = text;
            text += strcspn(text, " ()");
            char after = *text;
            *text = 0;
            char *value = strchr(word, '=');
            if (value) value++;
            if (!strncmp(word, "id=", 3)) part.id = atoi(value);
            else if (!strncmp(word, "uid=", 4)) part.uid = atoi(value);
            else if (!strncmp(word, "gpu=", 4)) part.gpu = atoi(value);
            else if (!strncmp(word, "parent=", 7)) part.parent = atoi(value);
            else if (!strncmp(word, "fork=", 5)) part.forks = atoi(value);
            else if (!strncmp(word, "argv=", 5)) part.argv = strdup(value);
            else if (!strncmp(word, "env=", 4)) part.env = strdup(value);
            else if (!strncmp(word, "exe=", 4)) part.exe = strdup(value);
            else if (!strcmp(word, "session")) part.session = 1;
            else if (!strcmp(word, "group")) part.group = 1;
            else if (!strcmp(word, "die")) part.at_term = DIE;
            else if (!strcmp(word, "stay")) part.at_term = STAY;
            else if (!strcmp(word, "attach")) part.at_term = ATTACH;
            else if (!strcmp(word, "attach_kept")) part.at_term = ATTACH_KEPT;
            else if (!strcmp(word, "detach")) part.at_term = DETACH;
            else if (!strcmp(word, "stop")) part.stop = 1;
            else if (!strcmp(word, "gone")) part.gone = 1;
            else if (!strcmp(word, "daemon")) part.daemon = 1;
            else if (!strcmp(word, "restart")) part.restart = 1;
            else if (!strcmp(word, "late")) part.late = 1;
            else _exit(92);
            if (*text == 0) *text = after;
        }
    }
    if (part.env && strstr(part.env, "GPUMEM_KEEP=")) part.kept = 1;
    return part;
}

static int split(char *text, char **words) {
    int count = 0;
    for (char *word = strtok(text, ","); word && count < WORDS - 2; word = strtok(NULL, ","))
        words[count++] = word;
    words[count] = NULL;
    return count;
}

static void execute(struct part *part, const char *text) {
    char *argv[WORDS], *envp[WORDS], path[512], *own;
    split(part->argv, argv);
    int count = part->env ? split(part->env, envp) : 0;
    if (asprintf(&own, PART "%s", text) < 0) _exit(93);
    envp[count] = own;
    envp[count + 1] = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, part->exe ? part->exe : "python3");
    execve(path, argv, envp);
    _exit(94);
}

static void act(const char *text, int is_executed);

/* Reads 128 MiB, which is more than an idle process reads. */
static void work(void) {
    static char bytes[1 << 16];
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    for (long long left = 128 << 20; left > 0;) {
        ssize_t length = pread(file, bytes, sizeof bytes, 0);
        if (length <= 0) _exit(78);
        left -= length;
    }
    close(file);
}

static void map_births(void) {
    births = mmap(NULL, BIRTHS * sizeof *births, PROT_READ | PROT_WRITE, MAP_SHARED, NUMBER_OF_BIRTHS, 0);
    if (births == MAP_FAILED) _exit(99);
}

/* Forks, and records the birth. */
static pid_t give_birth(const struct part *part, int id) {
    int at = __atomic_add_fetch(&births->id, 1, __ATOMIC_SEQ_CST);
    if (at >= BIRTHS) _exit(89);
    struct birth *birth = births + at;
    birth->of = born_of = getpid();
    birth->id = id;
    birth->gpu = part->gpu < 0 && !part->argv ? open_gpu : part->gpu;
    birth->kept = part->argv ? part->kept : getenv("GPUMEM_KEEP") != NULL;
    birth->at = now();
    pid_t pid = syscall(SYS_clone, CLONE_PARENT_SETTID | SIGCHLD, 0, &birth->pid, 0, 0);
    if (pid < 0) _exit(95);
    return pid;
}

/* Starts a process, and returns the pid. */
static pid_t start(const char *text) {
    char *copy = strdup(text);
    struct part part = parse(copy);
    free(copy);
    pid_t pid = give_birth(&part, part.daemon ? -5 : part.id);
    if (pid == 0) act(text, 0);
    return pid;
}

static void act(const char *text, int is_executed) {
    char *copy = strdup(text);
    struct part part = parse(copy);
    if (!is_executed) {
        signal(SIGCHLD, SIG_DFL);
        actor = 0;
        if (part.session) setsid();
        if (part.group) setpgid(0, 0);
        if (part.daemon) {
            if (give_birth(&part, part.id) > 0) _exit(0);
        }
        if (part.uid >= 0 && (setgid(part.uid) || setuid(part.uid))) _exit(97);
        if (part.argv) execute(&part, text);
    } else {
        tell("E %d %d %lld\n", part.id, getpid(), now());
    }
    if (part.gpu >= 0) {
        char path[32];
        snprintf(path, sizeof path, "/dev/nvidia%d", part.gpu);
        if (open(path, O_RDONLY | O_CLOEXEC) < 0) _exit(98);
        open_gpu = part.gpu;
    }
    sigset_t some, none;
    sigemptyset(&some);
    sigemptyset(&none);
    for (unsigned i = 0; i < sizeof heard / sizeof *heard; i++) {
        struct sigaction action = {.sa_handler = on_signal};
        sigaction(heard[i], &action, NULL);
        sigaddset(&some, heard[i]);
        caught[heard[i]] = 0;
    }
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGCHLD, &action, NULL);
    sigaddset(&some, SIGCHLD);
    sigprocmask(SIG_BLOCK, &some, NULL);
    pid_t running[CHILDREN] = {0};
    int restarts = 0, ticks = 0;
    for (int i = 0; i < part.children; i++) running[i] = start(part.child[i]);
    if (part.gone) {
        tell("X %d %d %lld\n", part.id, getpid(), now());
        _exit(0);
    }
    tell("R %d %d\n", part.id, getpid());
    if (part.stop) kill(getpid(), SIGSTOP);
    if (part.parent) born_of = part.parent;
    int is_told = 0;
    for (;;) {
        int is_busy = part.forks > 0 || (part.late && !is_told);
        struct timespec rest = {.tv_nsec = part.late ? 2000000 : 4000000};
        ppoll(NULL, 0, is_busy ? &rest : NULL, &none);
        for (unsigned i = 0; i < sizeof heard / sizeof *heard; i++)
            if (caught[heard[i]]) {
                caught[heard[i]] = 0;
                if (heard[i] == SIGWINCH) {
                    work();
                    tell("W %d %d\n", part.id, getpid());
                    continue;
                }
                tell("S %d %d %d\n", part.id, getpid(), heard[i]);
                if (heard[i] != SIGTERM) continue;
                char *child;
                if (part.at_term == DIE) {
                    tell("X %d %d %lld\n", part.id, getpid(), now());
                    _exit(0);
                } else if (part.at_term == ATTACH || part.at_term == ATTACH_KEPT) {
                    int is_kept = part.at_term == ATTACH_KEPT;
                    if (asprintf(&child, "(id=-2 stay late gpu=0 parent=%d %s)", getpid(),
                            is_kept ? "argv=python3,again.py env=GPUMEM_KEEP=forever" : "") < 0) _exit(93);
                    start(child);
                    part.at_term = STAY;
                } else if (part.at_term == DETACH) {
                    if (asprintf(&child, "(id=-3 stay late session parent=%d argv=python3,upload.py "
                            "env=RANK=0)", getpid()) < 0) _exit(93);
                    start(child);
                    tell("X %d %d %lld\n", part.id, getpid(), now());
                    _exit(0);
                }
            }
        if (part.late && !is_told && getppid() != born_of) {
            tell("O %d %d %lld\n", part.id, getpid(), now());
            is_told = 1;
        }
        for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0;)
            for (int i = 0; i < part.children; i++)
                if (running[i] == pid && part.restart && restarts < 8) {
                    restarts++;
                    running[i] = start(part.child[i]);
                }
        if (part.forks > 0 && ++ticks % 2 == 0) {
            part.forks--;
            start(part.forks % 3 ? "(id=-4 stay late gone)" : "(id=-4 stay late)");
        }
    }
}

/* Kills all processes that have started since the first request. */
static void end_all(pid_t *kept, int count) {
    for (;;) {
        DIR *proc = opendir("/proc");
        int left = 0;
        for (struct dirent *entry; (entry = readdir(proc));) {
            pid_t pid = atoi(entry->d_name);
            int is_kept = pid <= 1;
            for (int i = 0; i < count; i++) is_kept |= kept[i] == pid;
            if (!is_kept && kill(pid, SIGKILL) == 0) left++;
        }
        closedir(proc);
        if (!left) return;
        struct timespec rest = {.tv_nsec = 200000};
        nanosleep(&rest, NULL);
    }
}

static int all(pid_t *pids, int most) {
    int count = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; (entry = readdir(proc));)
        if (atoi(entry->d_name) > 1 && count < most) pids[count++] = atoi(entry->d_name);
    closedir(proc);
    return count;
}

/* Reaps exited processes. If the actor exits, the spawner exits, which ends the namespace. */
static void on_child(int number) {
    (void)number;
    int status, error = errno;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        if (pid == actor) _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 88);
    errno = error;
}

int main(int argc, char **argv) {
    char *text = getenv("GPUMEM_TEST_PART");
    if (text) {
        /* The program is in FOLDER. */
        ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
        if (length < 0) return 80;
        *strrchr(folder, '/') = 0;
        truth = NUMBER_OF_TRUTH;
        map_births();
        act(text, 1);
    }
    if (argc < 3) return 81;
    snprintf(folder, sizeof folder, "%s", argv[1]);
    char name[512];
    snprintf(name, sizeof name, "%s/truth", folder);
    int file = open(name, O_RDWR | O_CREAT | O_APPEND, 0666);
    if (file < 0) return 82;
    /* All processes use this descriptor, which exec keeps open. */
    truth = dup2(file, NUMBER_OF_TRUTH);
    close(file);
    snprintf(name, sizeof name, "%s/births", folder);
    file = open(name, O_RDWR | O_CREAT, 0666);
    if (file < 0 || ftruncate(file, BIRTHS * sizeof *births)) return 79;
    dup2(file, NUMBER_OF_BIRTHS);
    close(file);
    map_births();
    snprintf(name, sizeof name, "%s/request", folder);
    if (mkfifo(name, 0600)) return 83;
    snprintf(name, sizeof name, "%s/reply", folder);
    if (mkfifo(name, 0600)) return 84;
    struct sigaction action = {.sa_handler = on_child, .sa_flags = SA_RESTART};
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    sigaction(SIGCHLD, &action, NULL);
    actor = fork();
    sigprocmask(SIG_UNBLOCK, &child, NULL);
    if (actor == 0) {
        close(truth);
        close(NUMBER_OF_BIRTHS);
        execvp(argv[2], argv + 2);
        _exit(85);
    }
    snprintf(name, sizeof name, "%s/request", folder);
    FILE *request = fopen(name, "re");
    snprintf(name, sizeof name, "%s/reply", folder);
    FILE *reply = fopen(name, "we");
    if (!request || !reply) return 86;
    static char line[MOST];
    static pid_t kept[64];
    int count = 0;
    while (fgets(line, sizeof line, request)) {
        line[strcspn(line, "\n")] = 0;
        if (!count) count = all(kept, 64);
        if (!strcmp(line, "end")) {
            end_all(kept, count);
            if (ftruncate(truth, 0)) return 87;
            memset(births, 0, (births->id + 1) * sizeof *births);
            fputs("ended\n", reply);
            fflush(reply);
        } else if (!strncmp(line, "work ", 5)) {
            kill(atoi(line + 5), SIGWINCH);
        } else {
            start(line);
        }
    }
    pause();
    return 0;
}
