! The module deck: DECK's calls for Fortran 2003 and later, by iso_c_binding. deck.h describes each call.
!
!     include 'deck.f90'        ! in one file of the program, before everything else; deckcc knows where it is
!     program hello
!       use deck
!
! A C string is a Fortran string followed by c_null_char: 'name' // c_null_char. The data of a message are passed by c_loc, so they must
! be a target. Times are microseconds. All calls are functions, whose results are DECK_OK (0) or negative.
module deck
  use, intrinsic :: iso_c_binding
  implicit none

  integer(c_int), parameter :: DECK_OK = 0, DECK_EINVAL = -1, DECK_ENOMEM = -2, DECK_ETIMEDOUT = -3, DECK_EAGAIN = -4, &
    DECK_EPEERLOST = -5, DECK_EGONE = -6, DECK_ENOENT = -7, DECK_EEXIST = -8, DECK_ESTATE = -9, DECK_ENOTSUP = -10, &
    DECK_EMISMATCH = -11, DECK_EOWNERDEAD = -12, DECK_EUNDELIVERED = -13, DECK_EIO = -14, DECK_EINTERNAL = -15

  ! integer(c_int) is DECK_INT, integer(c_long) DECK_LONG, real(c_float) DECK_FLOAT, real(c_double) DECK_DOUBLE.
  integer(c_int), parameter :: DECK_CHAR = 1, DECK_SHORT = 3, DECK_INT = 5, DECK_LONG = 7, DECK_LONGLONG = 9, DECK_FLOAT = 11, &
    DECK_DOUBLE = 12, DECK_MSG = 13

  type, bind(c) :: deck_msg_t
    type(c_ptr) :: buf
    integer(c_long) :: size
    integer(c_long) :: datalen
    type(c_ptr) :: cursor
    integer(c_long) :: source
    integer(c_int) :: tag
    integer(c_long_long) :: deck_number
  end type

  type, bind(c) :: deck_mbox_t
    integer(c_long_long) :: deck_number
  end type

  interface
    ! Fortran has the program's arguments itself: pass c_null_ptr twice.
    integer(c_int) function deck_init(argc, argv) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: argc, argv
    end function
    integer(c_int) function deck_done() bind(c)
      import :: c_int
    end function
    integer(c_long) function deck_node() bind(c)
      import :: c_long
    end function
    integer(c_long) function deck_numnodes() bind(c)
      import :: c_long
    end function
    integer(c_int) function deck_barrier() bind(c)
      import :: c_int
    end function

    integer(c_int) function deck_msg_create(msg, size) bind(c)
      import :: c_int, c_long, deck_msg_t
      type(deck_msg_t), intent(inout) :: msg
      integer(c_long), value :: size
    end function
    integer(c_int) function deck_msg_destroy(msg) bind(c)
      import :: c_int, deck_msg_t
      type(deck_msg_t), intent(inout) :: msg
    end function
    integer(c_int) function deck_msg_pack(msg, type, datum, n) bind(c)
      import :: c_int, c_long, c_ptr, deck_msg_t
      type(deck_msg_t), intent(inout) :: msg
      integer(c_int), value :: type
      type(c_ptr), value :: datum
      integer(c_long), value :: n
    end function
    integer(c_int) function deck_msg_unpack(msg, type, datum, n) bind(c)
      import :: c_int, c_long, c_ptr, deck_msg_t
      type(deck_msg_t), intent(inout) :: msg
      integer(c_int), value :: type
      type(c_ptr), value :: datum
      integer(c_long), value :: n
    end function
    integer(c_int) function deck_msg_clear(msg) bind(c)
      import :: c_int, deck_msg_t
      type(deck_msg_t), intent(inout) :: msg
    end function
    integer(c_int) function deck_msg_reset(msg) bind(c)
      import :: c_int, deck_msg_t
      type(deck_msg_t), intent(inout) :: msg
    end function

    integer(c_int) function deck_mbox_create(mbox, name) bind(c)
      import :: c_char, c_int, deck_mbox_t
      type(deck_mbox_t), intent(inout) :: mbox
      character(kind=c_char), intent(in) :: name(*)
    end function
    integer(c_int) function deck_mbox_clone(mbox, name) bind(c)
      import :: c_char, c_int, deck_mbox_t
      type(deck_mbox_t), intent(inout) :: mbox
      character(kind=c_char), intent(in) :: name(*)
    end function
    integer(c_int) function deck_mbox_destroy(mbox) bind(c)
      import :: c_int, deck_mbox_t
      type(deck_mbox_t), intent(inout) :: mbox
    end function
    integer(c_int) function deck_mbox_post(mbox, msg) bind(c)
      import :: c_int, deck_mbox_t, deck_msg_t
      type(deck_mbox_t), intent(inout) :: mbox
      type(deck_msg_t), intent(inout) :: msg
    end function
    integer(c_int) function deck_mbox_retrv(mbox, msg) bind(c)
      import :: c_int, deck_mbox_t, deck_msg_t
      type(deck_mbox_t), intent(inout) :: mbox
      type(deck_msg_t), intent(inout) :: msg
    end function
    integer(c_int) function deck_mbox_tryretrv(mbox, msg) bind(c)
      import :: c_int, deck_mbox_t, deck_msg_t
      type(deck_mbox_t), intent(inout) :: mbox
      type(deck_msg_t), intent(inout) :: msg
    end function
    integer(c_int) function deck_mbox_retrv_timeout(mbox, msg, microseconds) bind(c)
      import :: c_int, c_long, deck_mbox_t, deck_msg_t
      type(deck_mbox_t), intent(inout) :: mbox
      type(deck_msg_t), intent(inout) :: msg
      integer(c_long), value :: microseconds
    end function

    type(c_ptr) function deck_strerror(code) bind(c)
      import :: c_int, c_ptr
      integer(c_int), value :: code
    end function
    type(c_ptr) function deck_errmsg() bind(c)
      import :: c_ptr
    end function
  end interface

contains

  ! Returns the text of this thread's last error.
  function deck_error_text() result(text)
    character(len=:), allocatable :: text
    character(kind=c_char), pointer :: bytes(:)
    integer, parameter :: most = 4096
    integer :: n
    call c_f_pointer(deck_errmsg(), bytes, [most])
    text = ''
    do n = 1, most
      if (bytes(n) == c_null_char) exit
      text = text // bytes(n)
    end do
  end function
end module
