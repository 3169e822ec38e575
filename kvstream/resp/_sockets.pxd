"""System calls on sockets and the clock, without the GIL where they wait."""

from libc.stdint cimport int64_t


cdef extern from *:
    """
    #include <errno.h>
    #include <poll.h>
    #include <sys/socket.h>
    #include <time.h>
    #ifdef __linux__
    #include <sys/epoll.h>
    #endif
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
    #define KVSTREAM_READY 256
    static inline Py_ssize_t kvstream_send(int socket, const char *data, Py_ssize_t size) {
        return send(socket, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    /* The number of bytes received; 0 at the end, -1 if there are none yet, -2 after an error. */
    static inline Py_ssize_t kvstream_receive(int socket, char *to, Py_ssize_t room) {
        Py_ssize_t size = recv(socket, to, room, MSG_DONTWAIT);
        if (size >= 0) return size;
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? -1 : -2;
    }
    /* The readable sockets of an epoll. */
    static inline int kvstream_ready(int epoll, int *sockets) {
    #ifdef __linux__
        struct epoll_event events[KVSTREAM_READY];
        int i, count = epoll_wait(epoll, events, KVSTREAM_READY, 0);
        for (i = 0; i < count; i++) sockets[i] = events[i].data.fd;
        return count;
    #else
        return 0;
    #endif
    }
    static inline long long kvstream_now_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }
    /* The readable sockets of an epoll, polled until there are some or the time is over. */
    static inline int kvstream_poll_ready(int epoll, int *sockets, long long ns) {
        long long until = kvstream_now_ns() + ns;
        int count;
        do count = kvstream_ready(epoll, sockets); while (!count && kvstream_now_ns() < until);
        return count;
    }
    /* Whether a socket is readable, polled until it is or the time is over. */
    static inline int kvstream_poll_readable(int socket, long long ns) {
        struct pollfd one = {socket, POLLIN, 0};
        long long until = kvstream_now_ns() + ns;
        int found;
        do found = poll(&one, 1, 0); while (!found && kvstream_now_ns() < until);
        return found != 0;
    }
    /* Whether a socket becomes readable in some milliseconds, without polling. */
    static inline int kvstream_await_readable(int socket, int ms) {
        struct pollfd one = {socket, POLLIN, 0};
        return poll(&one, 1, ms) != 0;
    }
    """
    enum:
        KVSTREAM_READY
    Py_ssize_t kvstream_send(int socket, const char *data, Py_ssize_t size) nogil
    Py_ssize_t kvstream_receive(int socket, char *to, Py_ssize_t room) nogil
    int kvstream_ready(int epoll, int *sockets) nogil
    int64_t kvstream_now_ns() nogil
    int kvstream_poll_ready(int epoll, int *sockets, int64_t ns) nogil
    int kvstream_poll_readable(int socket, int64_t ns) nogil
    int kvstream_await_readable(int socket, int ms) nogil
