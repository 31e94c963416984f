! Pi in Fortran, as examples/c/pi.c computes it: each rank sums its share of the strips, rank 0 adds the partial sums.
!
!     deckcc -O2 examples/c/pi.f90 -o pi && deckrun -n 4 -- ./pi
include 'deck.f90'

program pi
  use deck
  implicit none
  integer(c_long), parameter :: strips = 1000000
  integer(c_long) :: strip
  type(deck_msg_t) :: msg
  type(deck_mbox_t) :: parts
  real(c_double), target :: part
  real(c_double) :: total, width, x

  call check(deck_init(c_null_ptr, c_null_ptr))
  call check(deck_msg_create(msg, 8_c_long))

  width = 1d0 / strips
  part = 0
  do strip = deck_node(), strips - 1, deck_numnodes()
    x = (strip + 0.5d0) * width
    part = part + width * 4 / (1 + x * x)
  end do

  if (deck_node() == 0) then
    call check(deck_mbox_create(parts, 'parts' // c_null_char))
    total = part
    do strip = 1, deck_numnodes() - 1
      call check(deck_mbox_retrv(parts, msg))
      call check(deck_msg_unpack(msg, DECK_DOUBLE, c_loc(part), 1_c_long))
      total = total + part
    end do
    print '(a, f14.12)', 'pi is about ', total
    if (abs(total - 4 * atan(1d0)) > 1d-10) stop 1
  else
    call check(deck_msg_pack(msg, DECK_DOUBLE, c_loc(part), 1_c_long))
    call check(deck_mbox_clone(parts, 'parts' // c_null_char))
    call check(deck_mbox_post(parts, msg))
  end if
  call check(deck_mbox_destroy(parts))
  call check(deck_msg_destroy(msg))
  call check(deck_done())

contains

  subroutine check(result)
    integer(c_int), intent(in) :: result
    if (result == DECK_OK) return
    print '(a)', deck_error_text()
    stop 1
  end subroutine
end program
